"""Several stores as one: each new job goes to the shard that the routes name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from headrace.errors import HeadraceError, PartlyUnavailable, Unavailable
from headrace.routing import merging
from headrace.routing.composite import Composite
from headrace.routing.routes import Routes, check_shards, parse_routes
from headrace.routing.shadow import QUEUE, Shadow, sampled
from headrace.routing.shard import Shard
from headrace.routing.view import View
from headrace.seam import records as r
from headrace.seam.protocol import Backend


class ShardState(Struct, frozen=True, kw_only=True):
    """One shard as it is now."""

    name: str
    home: bool
    """Whether this shard takes the jobs that no rule names, and holds rules, schedules and documents."""
    routes: tuple[str, ...]
    waiting: int = 0
    running: int = 0
    copies: int = 0
    """Copies of new jobs that it keeps for a day."""
    error: str = ""
    """Why it does not answer; empty: it does."""


class Router(Composite):
    """Shards with names. A shard that is away takes no new jobs and gives none out; the others go on."""

    def __init__(self, shards: Mapping[str, Backend], routes: str) -> None:
        check_shards(shards)
        self.routes: Routes = parse_routes(routes, shards)
        self.given = routes
        self._guarded = {name: Shard(name, store, partial(self._came, name)) for name, store in shards.items()}
        self.shards = {name: cast("Backend", shard) for name, shard in self._guarded.items()}
        home = self.shards[self.routes.home]
        super().__init__([home, *(store for store in self.shards.values() if store is not home)])
        self._view = View(self.all, home, apart=True)
        self._rotation = 0
        names = {rule.shard for rule in self.routes.copies}
        self.shadows = {name: Shadow(self.shards[name], time.monotonic) for name in sorted(names)}

    @property
    def home(self) -> Backend:
        return self._view.home

    def sibling(self) -> Router:
        sibling = Router({name: store.sibling() for name, store in self.shards.items()}, self.given)
        return sibling._counting_with(self)

    def _came(self, name: str) -> None:
        self._opened(self.shards[name])

    async def open(self) -> None:
        """A shard that is away is opened as soon as it is there. Raises if all are."""
        try:
            opening = [shard.open() for shard in self._guarded.values()]
            for answer in await asyncio.gather(*opening, return_exceptions=True):
                if isinstance(answer, BaseException):
                    raise answer
            if all(shard.problem for shard in self._guarded.values()):
                raise Unavailable(self._guarded[self.routes.home].problem)
        except BaseException:
            await self.close()
            raise

    async def view(self) -> View:
        return self._view

    async def states(self) -> list[ShardState]:
        """The shards, and how many jobs each has."""
        return await asyncio.gather(*(self._state(name, store) for name, store in self.shards.items()))

    async def _state(self, name: str, store: Backend) -> ShardState:
        rules = [str(rule) for rule in self.routes.rules if rule.shard == name]
        rules += [str(rule) for rule in self.routes.copies if rule.shard == name]
        rules += [f"full={name}"] * (self.routes.spill == name) + [f"*={name}"] * (self.routes.home == name)
        state = ShardState(name=name, home=store is self.home, routes=tuple(rules))
        try:
            queues = (await store.stats()).queues
        except HeadraceError as error:
            return replace(state, error=str(error))
        copies = sum(queue.available for queue in queues if queue.queue == QUEUE)
        jobs = [queue for queue in queues if queue.queue != QUEUE]
        waiting = sum(queue.available + queue.jobs_paused for queue in jobs)
        return replace(state, waiting=waiting, copies=copies, running=sum(queue.running for queue in jobs))

    async def place(self, view: View, rows: Sequence[r.Row], at: r.Stamp) -> list[r.Inserted]:
        answers: dict[int, r.Inserted] = await self._spilled(rows, at)
        groups: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            if number not in answers:
                groups.setdefault(self.routes.shard_of(row), []).append(number)
        problem = await self._insert_into(groups, rows, answers, at)
        full = [n for n, one in answers.items() if one.status is r.InsertStatus.FULL and self.routes.spills(rows[n])]
        if full and self.routes.spill is not None:
            problem = await self._insert_into({self.routes.spill: full}, rows, answers, at) or problem
        await self._copy([rows[n] for n, one in answers.items() if one.status is r.InsertStatus.NEW])
        if problem is not None:
            unknown = [n for n in range(len(rows)) if n not in answers]
            raise PartlyUnavailable(str(problem), [answers.get(n) for n in range(len(rows))], unknown) from problem
        return [answers[n] for n in range(len(rows))]

    async def _insert_into(
        self, groups: Mapping[str, Sequence[int]], rows: Sequence[r.Row], answers: dict[int, r.Inserted], at: r.Stamp
    ) -> Unavailable | None:
        """Store rows in their shards and note the answers; returns why a shard gave none."""
        inserts = [self.shards[name].insert([rows[n] for n in numbers], at) for name, numbers in groups.items()]
        problem: Unavailable | None = None
        for numbers, found in zip(groups.values(), await asyncio.gather(*inserts, return_exceptions=True), strict=True):
            if isinstance(found, Unavailable):
                problem = found
                for number in numbers:
                    answers.pop(number, None)
            elif isinstance(found, BaseException):
                raise found
            else:
                answers |= dict(zip(numbers, found, strict=True))
        return problem

    async def _copy(self, rows: Sequence[r.Row]) -> None:
        for rule in self.routes.copies:
            shadow = self.shadows[rule.shard]
            chosen = [row for row in rows if sampled(row.id, rule.share)]
            if rule.kind == "shadow":
                shadow.offer(chosen)
            elif chosen:
                await shadow.write(chosen)

    async def close(self) -> None:
        for shadow in self.shadows.values():
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

    async def _claim(self, view: View, req: r.Claim, at: r.Stamp) -> r.Claimed:
        """Each time another shard comes first, so that none starves."""
        self._rotation += 1
        first = self._rotation % len(self.all)
        found, there = r.Claimed([]), False
        problem: Unavailable | None = None
        for store in (*self.all[first:], *self.all[:first]):
            room = req.limit - len(found.jobs)
            if room <= 0:
                break
            try:
                found = merging.claimed(found, await store.claim(replace(req, limit=room), at), req.limit)
                there = True
            except Unavailable as error:
                problem = error
        if problem is None:
            return found
        if not there:
            raise problem
        return replace(found, doubtful=True)
