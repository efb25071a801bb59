"""One Valkey server per test process, and blank stores on it."""

from __future__ import annotations

import atexit
import functools
from pathlib import Path

import redis
from servers.valkey import Valkey

from headrace.backends.redis import RedisBackend, parse


@functools.cache
def server() -> Valkey:
    """The server of this process."""
    valkey = Valkey()
    atexit.register(valkey.close)
    valkey.start()
    return valkey


class Stores:
    """Each place has a store of its own, which is blank at first; only that of the last place is there."""

    def __init__(self) -> None:
        self._place: Path | None = None

    def connect(self, place: Path) -> RedisBackend:
        """A new, unopened backend on the store that belongs to ``place``."""
        if place != self._place:
            self._place = place
            with redis.Redis.from_url(server().url()) as client:
                client.flushall()
        return RedisBackend(parse(server().url(), {}, "valkey"))


stores = Stores()
