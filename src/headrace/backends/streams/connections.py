"""Connections to Valkey that know which run of which server answers them."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from headrace.backends.redis.checks import Fact, room, transport
from headrace.backends.redis.connection import Connection
from headrace.backends.redis.connections import ServerConnections
from headrace.backends.redis.endpoint import Endpoint
from headrace.backends.redis.opening import check_server, read_info
from headrace.backends.redis.translate import Refused, translated
from headrace.backends.streams.scripts import SCRIPTS
from headrace.errors import HeadraceError


class WindowConnections(ServerConnections):
    """A server that was started again, or a replica that took over, has another run id: it may have lost what it did
    last."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._runs: WeakKeyDictionary[Connection, bytes] = WeakKeyDictionary()

    async def single(self, key: str, *, limit: float) -> Connection:
        connection = await super().single(key, limit=limit)
        try:
            with self._connecting():
                facts = read_info(await connection.call("INFO"))
                check_server(facts, self._endpoint, self._endpoint.where)
        except Refused as error:
            await connection.close()
            raise translated(error, self._endpoint.where) from error
        except BaseException:
            await connection.close()
            raise
        self._runs[connection] = facts["run_id"].encode()
        return connection

    async def script(self, name: str, base: str, floor: int, *args: bytes | str | int) -> Any:
        """Run a script on the keys that begin with ``base``, on a server that has this floor."""
        script = SCRIPTS[name]
        connection = self._kept.connection
        if connection is None or not connection.usable:
            connection = await self._kept.get()
        run = b"%s %d" % (self._runs[connection], floor)
        try:
            try:
                return await self._ask(connection, "EVALSHA", script.digest, 1, base, run, *args)
            except Refused as error:
                if error.code != "NOSCRIPT":
                    raise
            return await self._ask(connection, "EVAL", script.text, 1, base, run, *args)
        except Refused as error:
            raise translated(error, self._endpoint.where, base=base) from error

    async def checks(self, key: str) -> list[Fact]:
        """What is worth knowing of the server, if this is open, and of the way to it."""
        found = transport(self._endpoint)
        if self._open:
            try:
                info = read_info(await self.call(key, "INFO"))
                check_server(info, self._endpoint, self._endpoint.where)
                found += [fact._replace(check=f"windows: {fact.check}") for fact in room(info)]
            except HeadraceError as error:
                found.append(Fact("fail", "windows", str(error)))
        return found

    def leave(self) -> None:
        """Ask again which server there is."""
        if self._kept.connection is not None:
            self._kept.connection.end("another Valkey is in charge")
