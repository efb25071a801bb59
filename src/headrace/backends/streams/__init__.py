"""PostgreSQL keeps the jobs, Valkey gives them out. Nothing that only Valkey has may be needed to find a job again."""

from headrace.backends.streams.backend import StreamsBackend
from headrace.backends.streams.options import StreamsOptions

__all__ = ["StreamsBackend", "StreamsOptions"]
