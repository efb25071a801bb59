"""Jobs in Valkey or Redis."""

from headrace.backends.redis.backend import RedisBackend
from headrace.backends.redis.cluster.backend import ClusterBackend
from headrace.backends.redis.endpoint import Endpoint, Mode, parse
from headrace.backends.redis.options import unknown

__all__ = ["ClusterBackend", "Endpoint", "Mode", "RedisBackend", "parse", "unknown"]
