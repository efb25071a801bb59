"""Blank stores of PostgreSQL and Valkey together, on the servers of this test process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import redis
from servers.valkey import Valkey

from headrace.backends.redis import parse
from headrace.backends.streams import StreamsBackend, StreamsOptions
from headrace.backends.streams.truth import Truth
from tests import postgres, valkey


class Stores:
    """Each place has a store of its own, which is blank at first; only that of the last place is there."""

    def __init__(self, options: StreamsOptions | None = None, server: Callable[[], Valkey] = valkey.server) -> None:
        self._place: Path | None = None
        self._options = options
        self._server = server

    def connect(self, place: Path) -> StreamsBackend:
        """A new, unopened backend on the store that belongs to ``place``."""
        return self.beside(place, self._server())

    def beside(self, place: Path, server: Valkey, schema: str = postgres.SCHEMA) -> StreamsBackend:
        """The same with this Valkey, which keeps what it has, or with another schema."""
        if place != self._place:
            self._place = place
            postgres.stores.connect(place)
            with redis.Redis.from_url(self._server().url()) as client:
                client.flushall()
        truth = Truth(postgres.server().url(), schema=schema)
        return StreamsBackend(truth, parse(server.url(), {}, "valkey"), options=self._options)


stores = Stores()
