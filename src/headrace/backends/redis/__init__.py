"""Jobs in Valkey or Redis."""

from headrace.backends.redis.backend import RedisBackend

__all__ = ["RedisBackend"]
