"""The windows in Valkey: the next jobs of each queue, and who has which."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from random import getrandbits
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from headrace.backends.streams.connections import WindowConnections
from headrace.backends.streams.deliveries import Delivery
from headrace.backends.streams.entries import Entry, Loss, leased
from headrace.backends.streams.options import StreamsOptions
from headrace.backends.streams.truth import MOST_LOST, Charge
from headrace.errors import Unavailable
from headrace.seam.records import Claim, JobId, Leased, Stamp

OPEN, CLOSING, CLOSED, UNKNOWN = "o", "c", "x", ""
BARRED = "b"
"""Open, but not to this claim: it may hold a job that the claim passes over, and PostgreSQL knows who may have it."""
_OFTEN, _SELDOM = 0.02, 1.0
"""Seconds between two questions about a queue: after it was fed by others; if it has no window."""
_TRIES = 3
_CLOSING = 5_000_000
"""Microseconds that a process has to close a window, before another one may."""
_UNUSED = 3_600_000_000
"""Microseconds after which a queue that nobody uses is forgotten."""
_FEEDING = 5_000
"""Milliseconds that a process has for each step of feeding a window."""

Pairs = Sequence[tuple[JobId, int]]


class QueueInfo(NamedTuple):
    """What a claim tells of a queue."""

    mode: str
    feeds: bytes
    look: bool
    full: bool
    next_at: int | None
    left: int
    looked: int
    """Microseconds since somebody looked into PostgreSQL for it."""
    closed: int
    """Microseconds for which it stays closed, if it is."""


class Found(NamedTuple):
    """The answer to a claim."""

    jobs: list[Leased]
    queues: dict[str, QueueInfo]
    cut: bool
    now: int
    floor: int
    doubtful: bool
    """A job was given out that cannot be read. A census finds it, and it is given back."""


class Numbers(NamedTuple):
    """The window of a queue in numbers; see :class:`headrace.seam.windows.WindowState`."""

    mode: str
    waiting: int
    pending: int
    overdue: int
    consumers: int
    lag: int
    oldest: int | None
    """For how long the oldest job that was not given out has been due."""


class Fed(NamedTuple):
    """What a window is fed with, up to where, whether there is more, and when the next job is due that is not here."""

    entries: list[Entry]
    lost: bool
    """Whether any of them has lost a worker."""
    mark: bytes
    full: bool
    next_at: int | None
    now: int
    """PostgreSQL's clock."""


class Feeding(NamedTuple):
    """Whether this process may feed a window, and what is to be known for it."""

    may: bool
    mode: str
    left: int
    mark: bytes
    waiting: int
    floor: int
    loss: Loss | None
    """The last one."""


class NotInCharge(Unavailable):
    """Another Valkey gives out the jobs of this store, so what this one has given out is lost."""


class Windows:
    """One call for each script. ``take_charge`` asks PostgreSQL for the floor when the server has none, or a wrong
    one."""

    def __init__(
        self,
        connections: WindowConnections,
        options: StreamsOptions,
        where: str,
        take_charge: Callable[[str, int, Stamp], Awaitable[Charge | None]],
    ) -> None:
        self.connections = connections
        self.base = ""
        """What all keys begin with."""
        self.floor = 0
        """Of the server, as far as it is known."""
        self.loss: Loss | None = None
        """The last one of that server."""
        self._options = options
        self._where = where
        self._take_charge = take_charge
        self._beginning = asyncio.Lock()
        self.feeds: dict[str, bytes] = {}
        """By queue, the number that says whether something else has fed it meanwhile."""
        self._asked: dict[str, float] = {}
        """When each queue was last asked for that number."""
        self._doubtful: set[str] = set()
        """Queues whose number was another one when it was last used."""

    async def run(self, name: str, at: Stamp, *args: bytes | str | int) -> Any:
        """The answer of a script, without its head. A server that has another floor than is known here is asked, and
        takes charge if it may."""
        for _ in range(_TRIES):
            floor = self.floor
            answer = await self.connections.script(name, self.base, floor, "" if at is None else at, *args)
            if answer[0] != b"LOST":
                return answer
            if self.floor == floor:
                await self.begin_again(at)
        raise Unavailable("Valkey loses its memory again and again")

    async def begin_again(self, at: Stamp) -> None:
        """Ask PostgreSQL whether this server is in charge; it takes over if no other one is."""
        async with self._beginning:
            life = f"{getrandbits(64):x}"
            _, run, life, had = await self.connections.script("server", self.base, self.floor, "", life)
            charge = await self._take_charge(run.decode(), int(had), at)
            self.feeds.clear()
            if charge is None:
                await self.connections.script("leave", self.base, int(had), "")
                self.connections.leave()
                raise NotInCharge(
                    f"{self._where}: another Valkey gives out the jobs of this store. All processes must have the same "
                    "URL; this server takes over when that one has not been at work for half a minute"
                )
            floor, raised_at, now = charge
            raised = "" if raised_at is None else raised_at
            said = await self.connections.script("init", self.base, self.floor, "", run, life, floor, now, raised)
            if said[0] == b"OK":
                self.floor = floor
                self.loss = None if raised_at is None else Loss(raised_at, floor)

    async def know(self, queue: str, at: Stamp) -> None:
        """Ask for the number of feedings, if it is not known or was wrong, but not too often."""
        if queue in self.feeds and queue not in self._doubtful:
            return
        now = asyncio.get_running_loop().time()
        if now - self._asked.get(queue, -_SELDOM) < (_OFTEN if queue in self._doubtful else _SELDOM):
            return
        self._asked[queue] = now
        self._doubtful.discard(queue)
        _, mode, feeds = await self.run("feeds", at, queue)
        self._note(queue, mode.decode(), feeds)

    async def push(self, queue: str, feeds: bytes, entries: Sequence[Entry], now: int, at: Stamp) -> bool:
        """Put jobs into the window that were stored at this instant, if nothing but inserts has fed it since
        ``feeds``."""
        done, now_feeds, mode = await self.run("push", at, queue, feeds, self._options.window, now, *_flat(entries))
        self._note(queue, mode.decode(), now_feeds)
        if done != b"OK" and mode.decode() == OPEN:
            self._doubtful.add(queue)
        return bool(done == b"OK")

    async def claim(self, req: Claim, queues: Sequence[str], limit: int, at: Stamp) -> Found:
        """Take jobs from windows that are open."""
        most = min(limit, self._options.count)
        _, jobs, told, cut, now, used, floor = await self.run(
            "claim",
            at,
            self.consumer(req.holder),
            most,
            req.lease_for,
            req.max_bytes,
            self._options.entry_bytes,
            int(req.lost_below is not None and req.lost_below <= MOST_LOST),
            *queues,
        )
        infos = {queue: _info(one) for queue, one in zip(queues, told, strict=True)}
        for queue, info in infos.items():
            self._note(queue, info.mode, info.feeds)
        found: list[Leased] = []
        for number, epoch, begun, job in jobs:
            with suppress(msgspec.DecodeError, ValueError, TypeError, AttributeError):
                found.append(leased(queues[number], int(epoch), begun == b"1", job, req.want))
        doubtful = len(found) < len(jobs)
        if cut or len(jobs) < most or most == limit:
            return Found(found, infos, bool(cut), int(now), floor, doubtful)
        rest = replace(req, max_bytes=max(1, req.max_bytes - int(used)))
        more = await self.claim(rest, queues, limit - most, at)
        return more._replace(jobs=found + more.jobs, doubtful=doubtful or more.doubtful)

    def consumer(self, holder: str) -> str:
        """The name of a holder in the groups of streams."""
        return f"{self._options.consumer}/{holder}" if self._options.consumer else holder

    def _holder(self, consumer: bytes) -> str:
        prefix = f"{self._options.consumer}/" if self._options.consumer else ""
        return consumer.decode().removeprefix(prefix)

    def _note(self, queue: str, mode: str, feeds: bytes) -> None:
        if mode == OPEN:
            self.feeds[queue] = feeds
        else:
            self.feeds.pop(queue, None)

    async def settle(self, queue: str, given: Pairs, at: Stamp) -> None:
        """Deliveries are over."""
        await self.run("settle", at, queue, *_pairs(given))

    async def renew(self, queue: str, holder: str, lease_for: int, given: Pairs, at: Stamp) -> list[bool]:
        """Which deliveries are still this holder's; their leases last longer."""
        _, mine = await self.run("renew", at, queue, self.consumer(holder), lease_for, *_pairs(given))
        return [bool(one) for one in mine]

    async def held(self, queue: str, most: int, at: Stamp, *, holder: str | None = None) -> list[Delivery]:
        """The deliveries of a queue, or a holder's, those first that end first."""
        kind = "a" if holder is None else "h"
        _, found = await self.run("held", at, queue, most, kind, "" if holder is None else self.consumer(holder))
        return self._deliveries(found)

    async def overdue(self, most: int, at: Stamp, pulse: Sequence[int] = ()) -> dict[str, list[Delivery]]:
        """Deliveries whose lease has ended, by queue; with a pulse, none unless Valkey has been steady by it. Queues
        that are not used any more are forgotten."""
        _, *found = await self.run("overdue", at, most, _UNUSED, *pulse)
        return {queue.decode(): self._deliveries(some) for queue, some in zip(found[::2], found[1::2], strict=True)}

    async def find(self, queue: str, ids: Sequence[JobId], at: Stamp, *, recall: bool = False) -> list[Delivery]:
        """The deliveries of these jobs. With ``recall``, those that were not given out leave the window."""
        _, found = await self.run("find", at, queue, "r" if recall else "l", *ids)
        if recall:
            self.feeds.pop(queue, None)
        return self._deliveries(found)

    async def close(self, queue: str, at: Stamp) -> tuple[int, list[Delivery]]:
        """Empty a window, and give nothing out until it is shut; the server's floor, and all deliveries."""
        self.feeds.pop(queue, None)
        _, floor, found = await self.run("close", at, queue, _CLOSING)
        return floor, self._deliveries(found)

    async def shut(self, queue: str, hold: int) -> None:
        """From now on PostgreSQL gives the jobs out, for this long at least."""
        await self.run("shut", None, queue, hold)

    async def begin(self, queue: str, token: str, at: Stamp) -> Feeding:
        """Ask to feed a window."""
        _, may, mode, left, mark, waiting, raised, floor = await self.run("begin", at, queue, token, _FEEDING)
        loss = Loss(int(raised), floor) if raised else None
        return Feeding(bool(may), mode.decode(), int(left), mark, waiting, floor, loss)

    async def unknown(self, queue: str, token: str, ids: Sequence[JobId]) -> list[JobId]:
        """Of these, those that the window does not have. Who feeds it has time for the next step."""
        if not ids:
            return []
        _, found = await self.run("unknown", None, queue, token, _FEEDING, *ids)
        return [ids[number] for number in found]

    async def feed(self, queue: str, token: str, fed: Fed, wanted: int, at: Stamp, *, last: bool) -> bool:
        """Feed a window, if no other process does by now. It is open then. Unless this is the last page, this process
        goes on."""
        later = "" if fed.next_at is None else fed.next_at
        rest = "" if last else _FEEDING
        answer = await self.run(
            "feed",
            at,
            queue,
            token,
            fed.mark,
            int(fed.full),
            later,
            wanted,
            fed.now,
            rest,
            int(fed.lost),
            *_flat(fed.entries),
        )
        if answer[0] != b"OK":
            return False
        self._note(queue, OPEN, answer[1])
        return True

    async def beat(self, at: Stamp) -> int:
        """The clock, once Valkey answers."""
        _, now = await self.run("beat", at)
        return int(now)

    async def check(self) -> None:
        """Whether the server answers."""
        await self.connections.call(self.base, "PING")

    async def tell(self, queue: str) -> None:
        """PostgreSQL may have jobs that the window lacks."""
        await self.run("tell", None, queue, "")

    async def prune(self, queue: str, *, holder: str | None = None, idle: int = 0) -> int:
        """Remove the consumers that own nothing: this one, or those that did nothing for this many milliseconds."""
        _, gone = await self.run("prune", None, queue, "" if holder is None else self.consumer(holder), idle)
        return int(gone)

    async def health(self, queue: str, at: Stamp) -> Numbers:
        """A queue in numbers."""
        _, mode, waiting, pending, overdue, consumers, lag, oldest = await self.run("health", at, queue)
        age = int(oldest) if oldest else None
        return Numbers(mode.decode(), waiting, pending, overdue, consumers, lag, age)

    async def queues(self, at: Stamp) -> list[str]:
        """Those that have a window, or had one."""
        _, names = await self.run("queues", at)
        return sorted(name.decode() for name in names)

    def _deliveries(self, found: Iterable[Sequence[Any]]) -> list[Delivery]:
        return [
            Delivery(job_id, int(epoch), self._holder(consumer), int(left), begun == b"1", floor)
            for job_id, epoch, consumer, left, begun, floor in found
        ]


def _flat(entries: Sequence[Entry]) -> list[bytes | int]:
    return [value for entry in entries for value in entry]


def _pairs(given: Pairs) -> list[bytes | int]:
    return [value for pair in given for value in pair]


def _info(told: Sequence[Any]) -> QueueInfo:
    mode, feeds, look, full, next_at, left, looked, closed = told
    return QueueInfo(
        mode.decode(),
        feeds,
        look == b"1",
        full == b"1",
        int(float(next_at)) if next_at else None,
        left,
        int(looked),
        int(closed),
    )
