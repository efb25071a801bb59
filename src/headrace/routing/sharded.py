"""Several stores as one: each new job goes to the shard that the routes name."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from headrace.errors import HeadraceError, Unavailable
from headrace.routing import merging
from headrace.routing.composite import Composite
from headrace.routing.routes import Routes, check_shards, parse_routes
from headrace.routing.shadow import Shadow, sampled
from headrace.routing.view import View
from headrace.seam import records as r
from headrace.seam.protocol import Backend

T = TypeVar("T")


class ShardState(Struct, frozen=True, kw_only=True):
    """One shard as it is now."""

    name: str
    home: bool
    """Whether jobs go here that no rule names, and rules, schedules and documents lie here."""
    routes: tuple[str, ...]
    waiting: int = 0
    running: int = 0
    error: str = ""
    """Why it does not answer; empty: it does."""


class Router(Composite):
    """Shards with names. A shard that is away takes no new jobs and gives none out; the others go on."""

    def __init__(self, shards: Mapping[str, Backend], routes: str) -> None:
        check_shards(shards)
        self.shards = dict(shards)
        self.given = routes
        self.routes: Routes = parse_routes(routes, shards)
        home = self.shards[self.routes.home]
        super().__init__([home, *(store for store in self.shards.values() if store is not home)])
        self._view = View(self.all, home)
        self._rotation = 0
        self._shadows = [(rule, Shadow(self.shards[rule.shard], time.monotonic)) for rule in self.routes.copies]

    @property
    def home(self) -> Backend:
        return self._view.home

    def sibling(self) -> Router:
        return Router({name: store.sibling() for name, store in self.shards.items()}, self.given)

    async def view(self) -> View:
        return self._view

    async def states(self) -> list[ShardState]:
        """The shards, and how many jobs each has."""
        return [await self._state(name, store) for name, store in self.shards.items()]

    async def _state(self, name: str, store: Backend) -> ShardState:
        rules = [str(rule) for rule in self.routes.rules if rule.shard == name]
        rules += [str(rule) for rule in self.routes.copies if rule.shard == name]
        rules += [f"full={name}"] * (self.routes.spill == name) + [f"*={name}"] * (self.routes.home == name)
        state = ShardState(name=name, home=store is self.home, routes=tuple(rules))
        try:
            queues = (await store.stats()).queues
        except HeadraceError as error:
            return replace(state, error=str(error))
        waiting = sum(queue.available + queue.jobs_paused for queue in queues)
        return replace(state, waiting=waiting, running=sum(queue.running for queue in queues))

    async def place(self, view: View, rows: Sequence[r.Row], at: r.Stamp) -> list[r.Inserted]:
        answers: dict[int, r.Inserted] = await self._spilled(rows, at)
        groups: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            if number not in answers:
                groups.setdefault(self.routes.shard_of(row), []).append(number)
        for name, numbers in groups.items():
            found = await self.shards[name].insert([rows[n] for n in numbers], at)
            answers |= dict(zip(numbers, found, strict=True))
        full = [n for n, one in answers.items() if one.status is r.InsertStatus.FULL and self.routes.spills(rows[n])]
        if full and self.routes.spill is not None:
            found = await self.shards[self.routes.spill].insert([rows[n] for n in full], at)
            answers |= dict(zip(full, found, strict=True))
        await self._copy([rows[n] for n, one in answers.items() if one.status is r.InsertStatus.NEW])
        return [answers[n] for n in range(len(rows))]

    async def _copy(self, rows: Sequence[r.Row]) -> None:
        for rule, shadow in self._shadows:
            chosen = [row for row in rows if sampled(row.id, rule.share)]
            if rule.kind == "shadow":
                shadow.offer(chosen)
            elif chosen:
                await shadow.write(chosen)

    async def close(self) -> None:
        for _, shadow in self._shadows:
            await shadow.close()
        await super().close()

    async def _spilled(self, rows: Sequence[r.Row], at: r.Stamp) -> dict[int, r.Inserted]:
        """Those that an earlier try has stored where full shards spill to."""
        may = [n for n, row in enumerate(rows) if self.routes.spills(row)]
        if not may or self.routes.spill is None:
            return {}
        found = await self.shards[self.routes.spill].fetch([rows[n].id for n in may], at=at)
        return {
            n: r.Inserted(r.InsertStatus.SAME, job.id, job.state, None, job.attempt)
            for n, job in zip(may, found, strict=True)
            if job is not None
        }

    # -- shards that are away

    async def _answers(self, call: Callable[[Backend], Awaitable[T]]) -> tuple[list[T], bool]:
        """The answers of the shards that are there, and whether all are. Raises if none is."""
        found: list[T] = []
        problem: Unavailable | None = None
        for store in self.all:
            try:
                found.append(await call(store))
            except Unavailable as error:
                problem = error
        if not found and problem is not None:
            raise problem
        return found, problem is None

    async def _claim(self, view: View, req: r.Claim, at: r.Stamp) -> r.Claimed:
        """Each time another shard comes first, so that none starves."""
        self._rotation += 1
        first = self._rotation % len(self.all)
        found, away = r.Claimed([]), False
        for store in (*self.all[first:], *self.all[:first]):
            room = req.limit - len(found.jobs)
            if room <= 0:
                break
            try:
                found = merging.claimed(found, await store.claim(replace(req, limit=room), at), req.limit)
            except Unavailable:
                away = True
        return replace(found, doubtful=True) if away else found

    async def renew(self, beat: r.Beat, at: r.Stamp = None) -> r.Renewed:
        """A lease that no shard knows may be in one that is away: then it is not lost."""
        answers, all_there = await self._answers(lambda store: store.renew(beat, at))
        found = merging.renewed(answers)
        return found if all_there else replace(found, lost=[], doubtful=True)

    async def reap(self, req: r.Reap, at: r.Stamp = None) -> list[r.Reaped]:
        answers, _ = await self._answers(lambda store: store.reap(req, at))
        return [one for answer in answers for one in answer]

    async def stats(self, at: r.Stamp = None, *, queues: Sequence[str] | None = None) -> r.Stats:
        answers, _ = await self._answers(lambda store: store.stats(at, queues=queues))
        return merging.stats(answers)
