"""Jobs in Valkey or Redis."""

from headrace.backends.redis.backend import RedisBackend
from headrace.backends.redis.place import Place, parse

__all__ = ["Place", "RedisBackend", "parse"]
