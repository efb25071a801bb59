"""The actors of a simulation: workers, producers, waiters, an operator, a janitor, and the nemesis."""
