"""Hints of transactions that are not ours: rows that one listener turns into notifications."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress

from psycopg import sql

from headrace.backends.postgres.connections import Connections
from headrace.errors import HeadraceError

log = logging.getLogger("headrace")

BELLS = "bells"
"""The topic that says that there may be some."""
_OFTEN = 0.05
_SHARE = 5
"""A look that takes long, as when an old snapshot keeps dead rows, is followed by a rest this many times as long."""


class Relay:
    """Looks for hints while some come, unless another process does."""

    def __init__(self, connections: Connections, schema: str) -> None:
        self._connections = connections
        self._statement = f"SELECT {sql.Identifier(schema).as_string(None).replace('%', '%%')}.relay_v1(%b)"
        self._holder = secrets.token_hex(8)
        self._looking: asyncio.Task[None] | None = None
        self._pause = asyncio.Event()
        """Ends early when somebody else looks."""

    def hear(self, taker: str) -> None:
        """There may be some; or ``taker`` looks for them, and nobody else needs to ask."""
        if taker:
            self._pause.set()
        elif self._looking is None or self._looking.done():
            self._pause.clear()
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="headrace-relay")

    async def close(self) -> None:
        """Stop looking."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def _look(self) -> None:
        clock = asyncio.get_running_loop().time
        goes_on = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_OFTEN * secrets.randbelow(100) / 100):
                await self._pause.wait()
                return
        while goes_on:
            began = clock()
            try:
                [[goes_on]] = await self._connections.rows(self._statement, (self._holder,))
            except HeadraceError as error:
                log.debug("hints of transactions were not relayed: %s", error)
                return
            if goes_on:
                await asyncio.sleep(max(_OFTEN, _SHARE * (clock() - began)))
