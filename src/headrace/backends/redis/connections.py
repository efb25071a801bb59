"""The connections to the servers of a store: made when needed, dropped when broken."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from binascii import crc_hqx
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from headrace.backends.redis.connection import Connection, connect
from headrace.backends.redis.endpoint import Address, Endpoint, Mode
from headrace.backends.redis.reconnecting import Reconnecting
from headrace.backends.redis.requests import Argument
from headrace.backends.redis.translate import Refused, refusals, translated
from headrace.backends.refusal import NotLetIn
from headrace.errors import ConfigError, Unavailable

LIMIT = 10.0
"""Seconds that the server has to answer a call."""
SLOTS = 16_384
_ANSWER = 1.0
"""Seconds that a server of a cluster has to say who has which slots."""
_HOPS = 5
"""How often a call follows a slot to another server."""


class Connections(ABC):
    """Connections to the servers that hold a store. They are open or closed, and were let in before or not."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._open = False
        self._good = False

    @abstractmethod
    async def call(self, key: str, *args: Argument) -> Any:
        """Send a command to the server that holds ``key``, and return its answer. Raises errors of the core, and
        :class:`Refused` for what only the caller can judge."""

    @abstractmethod
    async def single(self, key: str, *, limit: float) -> Connection:
        """A new connection to the server that holds ``key``, for this caller alone."""

    @abstractmethod
    async def beside(self, connection: Connection) -> Connection:
        """The shared connection to the server of a connection made by ``single``."""

    def open(self) -> None:
        """From now on connections are made when they are needed."""
        self._open = True

    def known_good(self) -> None:
        """The store was opened: a refusal from now on may be a mistake on the server that passes."""
        self._good = True

    @abstractmethod
    async def close(self) -> None:
        """Close all connections, and make no more."""

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        """Refuse to connect while closed. A refusal by a server that has let us in before is not final."""
        if not self._open:
            raise Unavailable(f"{self._endpoint.where}: the connections are closed")
        try:
            yield
        except ConfigError as error:
            raise error if isinstance(error, NotLetIn) or not self._good else NotLetIn(str(error)) from None


class ServerConnections(Connections):
    """One server; with sentinels, the one that is the primary at the moment."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._kept = Reconnecting(lambda: self.single("", limit=LIMIT))

    async def call(self, key: str, *args: Argument) -> Any:
        connection = self._kept.connection
        if connection is None or not connection.usable:
            connection = await self._kept.get()
        return await self._ask(connection, *args)

    async def _ask(self, connection: Connection, *args: Argument) -> Any:
        try:
            return await connection.call(*args)
        except asyncio.CancelledError:
            connection.doubt()
            raise
        except Refused as error:
            if "READONLY" in str(error):
                connection.end("the server has become a replica")
            raise

    async def single(self, key: str, *, limit: float) -> Connection:
        with self._connecting():
            [address] = self._endpoint.addresses if self._endpoint.mode is Mode.ONE else [await self._primary()]
            connection = await connect(self._endpoint, address, limit=limit)
            try:
                await self._check_role(connection)
            except BaseException:
                await connection.close()
                raise
            return connection

    async def _check_role(self, connection: Connection) -> None:
        """Nothing is read from a replica: it may be behind."""
        with refusals(self._endpoint.where):
            said = await connection.call("INFO", "replication")
        if b"role:slave" in said:
            raise Unavailable(
                f"{self._endpoint.where} is a replica just now: the URL must name the primary, or its sentinels"
            )

    async def beside(self, connection: Connection) -> Connection:
        return await self._kept.get()

    async def _primary(self) -> Address:
        """The primary, according to the first sentinel that answers."""
        problem: Exception | None = None
        for address in self._endpoint.addresses:
            there = self._endpoint.sentinel(address)
            try:
                connection = await connect(there, address, limit=LIMIT)
                try:
                    found = await connection.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._endpoint.master)
                finally:
                    await connection.close()
            except (Unavailable, Refused) as error:
                problem = translated(error, there.where, login=there.login)
                if "unknown command" in str(error):
                    problem = ConfigError(
                        f"{self._endpoint.where}: {address} is not a sentinel: its URL begins with redis://"
                    )
                continue
            if found is not None:
                host, port = found
                return Address(host.decode(), int(port))
        if problem is None:
            raise ConfigError(
                f"{self._endpoint.where}: the sentinels know no primary {self._endpoint.master!r}: "
                "check master in the URL"
            )
        raise problem

    async def close(self) -> None:
        self._open = False
        await self._kept.close()


class ClusterConnections(Connections):
    """The servers of a cluster, each with its slots. A slot that has moved is followed. A slot that is moving is not:
    its keys are on two servers then, and a script would take keys that it does not find for missing."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._ranges: list[tuple[int, int, Address]] = []
        """First and last slot, and the server that has them."""
        self._moved: dict[int, Address] = {}
        """Slots that have moved since, as servers said."""
        self._kept: dict[Address, Reconnecting] = {}
        self._singles: WeakKeyDictionary[Connection, Address] = WeakKeyDictionary()
        self._learning = asyncio.Lock()
        self._rotation = 0

    async def call(self, key: str, *args: Argument) -> Any:
        slot = slot_of(key)
        tried: set[Address] = set()
        for _ in range(_HOPS):
            address = self._owner(slot) or await self._learn(slot)
            connection: Connection | None = None
            try:
                connection = await self._connection(address)
                return await connection.call(*args)
            except asyncio.CancelledError:
                self._forget(address)
                if connection is not None:
                    connection.doubt()
                raise
            except Unavailable:
                self._forget(address)
                if connection is not None or address in tried:
                    raise
                tried.add(address)
            except Refused as error:
                match error.code:
                    case "MOVED":
                        self._moved[slot] = _moved(str(error), address)
                    case "READONLY" | "CLUSTERDOWN":
                        self._forget(address)
                        raise
                    case _:
                        raise
        raise Unavailable(f"{self._endpoint.where} cannot serve just now: slot {slot} keeps moving between servers")

    async def _connection(self, address: Address) -> Connection:
        if address not in self._kept:
            self._kept[address] = Reconnecting(lambda: self._connect(address, LIMIT))
        return await self._kept[address].get()

    async def _connect(self, address: Address, limit: float) -> Connection:
        with self._connecting():
            return await connect(self._endpoint, address, limit=limit)

    async def single(self, key: str, *, limit: float) -> Connection:
        slot = slot_of(key)
        self._forget(self._owner(slot))
        address = await self._learn(slot)
        connection = await self._connect(address, limit)
        self._singles[connection] = address
        return connection

    async def beside(self, connection: Connection) -> Connection:
        return await self._connection(self._singles[connection])

    def _owner(self, slot: int) -> Address | None:
        if slot in self._moved:
            return self._moved[slot]
        return next((address for first, last, address in self._ranges if first <= slot <= last), None)

    def _forget(self, address: Address | None) -> None:
        """Forget which slots this server has. Calls to other servers are not affected."""
        self._ranges = [one for one in self._ranges if one[2] != address]
        self._moved = {slot: owner for slot, owner in self._moved.items() if owner != address}

    async def owners(self) -> list[tuple[Address, Connection]]:
        """Every server that has slots, and the connection to it."""
        self._ranges, self._moved = [], {}
        await self._learn(0)
        addresses = dict.fromkeys(address for _, _, address in self._ranges)
        return [(address, await self._connection(address)) for address in addresses]

    async def _learn(self, slot: int) -> Address:
        """Find the server of a slot: ask the servers that still count as good first, and each time begin with another
        one, as one may be out of date."""
        async with self._learning:
            self._rotation += 1
            problem: Exception = Unavailable(f"{self._endpoint.where} cannot serve just now: no server has slot {slot}")
            there = list(dict.fromkeys(address for _, _, address in self._ranges))
            begin = self._rotation % len(there) if there else 0
            there = there[begin:] + there[:begin]
            others = (*self._endpoint.addresses, *self._kept)
            begin = self._rotation % len(others)
            for asked in dict.fromkeys((*there, *others[begin:], *others[:begin])):
                if (owner := self._owner(slot)) is not None:
                    return owner
                try:
                    said = await self._ask(asked)
                except (Unavailable, Refused) as error:
                    problem = self._no_cluster() if "cluster support disabled" in str(error) else error
                    continue
                self._moved = {}
                self._ranges = [
                    (first, last, Address(host.decode() if host else asked.host, port))
                    for first, last, (host, port, *_), *_ in said
                ]
            if (owner := self._owner(slot)) is not None:
                return owner
            raise translated(problem, self._endpoint.where)

    async def _ask(self, address: Address) -> Any:
        """Ask a server who has which slots. It has little time: all calls wait for this, and other servers know it
        too."""
        connection: Connection | None = None
        try:
            async with asyncio.timeout(_ANSWER):
                connection = await self._connection(address)
                return await connection.call("CLUSTER", "SLOTS")
        except TimeoutError:
            if connection is not None:
                connection.doubt()
            raise Unavailable(f"{self._endpoint.where} cannot serve just now: no answer from {address}") from None

    def _no_cluster(self) -> ConfigError:
        return ConfigError(
            f"{self._endpoint.where}: expected a cluster, got a single server: its URL begins with redis://"
        )

    async def close(self) -> None:
        self._open = False
        for kept in self._kept.values():
            await kept.close()


def slot_of(key: str) -> int:
    """The slot of a key with a hash tag.

    >>> slot_of("headrace{jobs}") == slot_of("{jobs}")
    True
    """
    return crc_hqx(key[key.index("{") + 1 : key.index("}")].encode(), 0) % SLOTS


def _moved(said: str, asked: Address) -> Address:
    host, _, port = said.split()[2].rpartition(":")
    return Address(host or asked.host, int(port))
