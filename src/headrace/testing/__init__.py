"""For tests: the conformance suite for backends, the simulation, and fixtures for users' own tests."""
