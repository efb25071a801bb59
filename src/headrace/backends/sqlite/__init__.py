"""The store in a SQLite file: durable, for any number of processes on one machine."""

from headrace.backends.sqlite.backend import SqliteBackend

__all__ = ["SqliteBackend"]
