"""The store in Valkey or Redis: one server (``backend``) or several (``cluster``).

Every operation runs a script on the server, which ``scripts`` puts together from the parts in ``lua``. Python packs the
arguments, unpacks the answers and keeps the connections; what must happen in one step is decided in a script.
"""

from headrace.backends.redis.backend import RedisBackend
from headrace.backends.redis.cluster.backend import ClusterBackend
from headrace.backends.redis.endpoint import Endpoint, Mode, parse
from headrace.backends.redis.options import unknown

__all__ = ["ClusterBackend", "Endpoint", "Mode", "RedisBackend", "parse", "unknown"]
