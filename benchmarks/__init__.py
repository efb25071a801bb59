"""Headrace against its peers, the bare driver and its own targets: ``python -m benchmarks``."""
