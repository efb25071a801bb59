"""Jobs in Valkey or Redis."""

from headrace.backends.redis.backend import RedisBackend
from headrace.backends.redis.cluster.backend import ClusterBackend
from headrace.backends.redis.options import unknown
from headrace.backends.redis.place import Mode, Place, parse

__all__ = ["ClusterBackend", "Mode", "Place", "RedisBackend", "parse", "unknown"]
