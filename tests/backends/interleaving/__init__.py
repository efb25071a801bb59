"""Two sessions of one PostgreSQL server, forced into a chosen order: one has done its statement and not yet committed
when the other begins. No clock has a say in it: the server tells whether the second one waits."""

from tests.backends.interleaving.stage import Stage

__all__ = ["Stage"]
