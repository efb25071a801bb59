"""PostgreSQL keeps the jobs, Valkey gives them out."""

from headrace.backends.streams.backend import StreamsBackend
from headrace.backends.streams.options import StreamsOptions

__all__ = ["StreamsBackend", "StreamsOptions"]
