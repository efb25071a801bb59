"""The store in a SQLite file: durable, for any number of processes on one machine. One thread of each process writes;
statements are in ``sql``, what they mean is in Python."""

from headrace.backends.sqlite.backend import SqliteBackend

__all__ = ["SqliteBackend"]
