"""Real processes, real faults: what no simulation can show. Run with ``make chaos``."""
