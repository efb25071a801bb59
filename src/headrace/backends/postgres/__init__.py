"""Jobs in PostgreSQL. What must happen in one step is a function in ``migrations``; Python packs its arguments, unpacks
its answers and keeps the connections."""

from headrace.backends.postgres.backend import PostgresBackend

__all__ = ["PostgresBackend"]
