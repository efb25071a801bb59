"""Those who act in a simulation: workers, producers, waiters, an operator, a janitor, and the nemesis."""
