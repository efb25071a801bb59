"""The lines to where a store is: made when needed, dropped when broken."""

from __future__ import annotations

import asyncio
from binascii import crc_hqx
from typing import Any, Protocol

from headrace.backends.redis.line import Line, connect
from headrace.backends.redis.place import Address, Mode, Place
from headrace.backends.redis.translate import Refused, translated
from headrace.errors import ConfigError, Unavailable

LIMIT = 10.0
"""Seconds that the server may leave a call unanswered."""
_SLOTS = 16_384
_HOPS = 5
"""How often a call follows a slot to another server."""


class Lines(Protocol):
    """Ways to the servers that hold a store."""

    async def call(self, key: str, *args: bytes | str | int) -> Any:
        """Send a command to the server that holds ``key``; its answer. Raises what the core understands, except
        :class:`Refused` for what only the caller can judge."""
        ...

    async def single(self, key: str, *, limit: float) -> Line:
        """A further line to the server that holds ``key``, for the caller alone."""
        ...

    def open(self) -> None:
        """From now on lines are made when they are needed."""
        ...

    async def close(self) -> None:
        """Hang up, and make no more."""
        ...


def lines(place: Place) -> Lines:
    """Those to a place."""
    return ClusterLines(place) if place.mode is Mode.CLUSTER else ServerLines(place)


class ServerLines:
    """One server; or that one, of those which sentinels watch, that is the primary at the moment."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._line: Line | None = None
        self._connecting = asyncio.Lock()
        self._open = False

    def open(self) -> None:
        self._open = True

    async def call(self, key: str, *args: bytes | str | int) -> Any:
        line = self._line
        if line is None or line.ended:
            line = await self._connect()
        try:
            return await line.call(*args)
        except Refused as error:
            if error.code == "READONLY" or "READONLY" in str(error):
                line.end("the server has become a replica")
            raise

    async def _connect(self) -> Line:
        async with self._connecting:
            if self._line is None or self._line.ended:
                self._line = await self.single("", limit=LIMIT)
            return self._line

    async def single(self, key: str, *, limit: float) -> Line:
        if not self._open:
            raise _closed(self._place)
        [address] = self._place.addresses if self._place.mode is Mode.ONE else [await self._primary()]
        return await connect(self._place, address, limit=limit)

    async def _primary(self) -> Address:
        """What the first sentinel says that answers."""
        problem: Exception | None = None
        for address in self._place.addresses:
            try:
                line = await connect(self._place.sentinels(), address, limit=LIMIT)
                try:
                    found = await line.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._place.master)
                finally:
                    line.end()
            except (Unavailable, Refused) as error:
                problem = translated(error, self._place.where)
                continue
            if found is not None:
                host, port = found
                return Address(host.decode(), int(port))
        if problem is None:
            raise ConfigError(
                f"{self._place.where}: the sentinels know no primary {self._place.master!r}: look at master in the URL"
            )
        raise problem

    async def close(self) -> None:
        self._open = False
        if self._line is not None:
            self._line.end()


class ClusterLines:
    """The servers of a cluster, each with its slots. A slot that has moved is followed. One that is moving is not: its
    keys are then here and there, and a script would take those that it does not find for missing."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._owners: dict[int, Address] = {}
        self._lines: dict[Address, Line] = {}
        self._connecting = asyncio.Lock()
        self._open = False

    def open(self) -> None:
        self._open = True

    async def call(self, key: str, *args: bytes | str | int) -> Any:
        slot = slot_of(key)
        for _ in range(_HOPS):
            address = self._owners.get(slot) or await self._learn(slot)
            try:
                line = self._lines.get(address)
                if line is None or line.ended:
                    line = await self._connect(address)
                return await line.call(*args)
            except Unavailable:
                self._owners.clear()
                raise
            except Refused as error:
                match error.code:
                    case "MOVED":
                        self._owners[slot] = _moved(str(error), address)
                    case "READONLY" | "CLUSTERDOWN":
                        self._owners.clear()
                        raise
                    case _:
                        raise
        raise Unavailable(f"{self._place.where} cannot serve just now: slot {slot} goes from server to server")

    async def _connect(self, address: Address) -> Line:
        async with self._connecting:
            line = self._lines.get(address)
            if line is None or line.ended:
                if not self._open:
                    raise _closed(self._place)
                line = self._lines[address] = await connect(self._place, address, limit=LIMIT)
            return line

    async def single(self, key: str, *, limit: float) -> Line:
        slot = slot_of(key)
        self._owners.clear()
        return await connect(self._place, await self._learn(slot), limit=limit)

    async def _learn(self, slot: int) -> Address:
        """Who has which slots, from the first server that says so."""
        problem: Exception = Unavailable(f"{self._place.where} cannot serve just now: nobody has slot {slot}")
        for address in dict.fromkeys((*self._lines, *self._place.addresses)):
            try:
                line = await self._connect(address)
                ranges = await line.call("CLUSTER", "SLOTS")
            except (Unavailable, Refused) as error:
                problem = translated(error, self._place.where)
                continue
            self._owners = {
                slot: Address(host.decode() or address.host if host else address.host, port)
                for first, last, (host, port, *_), *_ in ranges
                for slot in range(first, last + 1)
            }
            if slot in self._owners:
                return self._owners[slot]
        raise problem

    async def close(self) -> None:
        self._open = False
        for line in self._lines.values():
            line.end()


def _closed(place: Place) -> Unavailable:
    return Unavailable(f"{place.where}: the connections are closed")


def slot_of(key: str) -> int:
    """The slot of a key with a hash tag.

    >>> slot_of("headrace{jobs}") == slot_of("{jobs}")
    True
    """
    return crc_hqx(key[key.index("{") + 1 : key.index("}")].encode(), 0) % _SLOTS


def _moved(said: str, asked: Address) -> Address:
    host, _, port = said.split()[2].rpartition(":")
    return Address(host or asked.host, int(port))
