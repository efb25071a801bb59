"""Real servers for tests and benchmarks, from wheels: no root, no container, on a free port of the loopback."""
