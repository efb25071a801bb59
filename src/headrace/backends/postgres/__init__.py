"""Jobs in PostgreSQL."""

from headrace.backends.postgres.backend import PostgresBackend

__all__ = ["PostgresBackend"]
