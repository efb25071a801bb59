"""Studies behind decisions: run by hand, each prints a table and leaves its figures in ``benchmarks/results``."""
