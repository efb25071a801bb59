"""Connections to Valkey that know which run of which server answers them."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from headrace.backends.redis.connection import Connection
from headrace.backends.redis.connections import ServerConnections
from headrace.backends.redis.endpoint import Endpoint
from headrace.backends.redis.translate import Refused, translated
from headrace.backends.streams.scripts import SCRIPTS
from headrace.errors import Unavailable


class WindowConnections(ServerConnections):
    """A server that was started again, or a replica that took over, has another run id: it may have lost what it did
    last."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._runs: WeakKeyDictionary[Connection, bytes] = WeakKeyDictionary()

    async def single(self, key: str, *, limit: float) -> Connection:
        connection = await super().single(key, limit=limit)
        try:
            said = await connection.call("INFO", "server")
            run = next(line for line in said.split(b"\r\n") if line.startswith(b"run_id:"))
        except (Refused, StopIteration) as error:
            await connection.close()
            raise Unavailable(f"{self._endpoint.where}: it does not tell its run id ({error})") from error
        except BaseException:
            await connection.close()
            raise
        self._runs[connection] = run
        return connection

    async def script(self, name: str, base: str, *args: bytes | str | int) -> Any:
        """Run a script on the keys that begin with ``base``."""
        script = SCRIPTS[name]
        connection = self._kept.connection
        if connection is None or not connection.usable:
            connection = await self._kept.get()
        run = self._runs[connection]
        try:
            try:
                return await connection.call("EVALSHA", script.digest, 1, base, run, *args)
            except Refused as error:
                if error.code != "NOSCRIPT":
                    raise
            return await connection.call("EVAL", script.text, 1, base, run, *args)
        except asyncio.CancelledError:
            connection.doubt()
            raise
        except Refused as error:
            if "READONLY" in str(error):
                connection.end("the server has become a replica")
            raise translated(error, self._endpoint.where, base=base) from error
