"""A backend made of backends: the ten operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from msgspec.structs import replace

from headrace.errors import PartlyUnavailable, Unavailable
from headrace.routing import merging
from headrace.routing.altering import alter
from headrace.routing.capabilities import RoutedArchive, RoutedDocuments, RoutedJournal, RoutedParts, RoutedReferences
from headrace.routing.hints import RoutedHints
from headrace.routing.policies import RoutedPolicies
from headrace.routing.shadow import QUEUE, Counts, Shadow
from headrace.routing.ticks import RoutedTicks
from headrace.routing.transit import deliver_named
from headrace.routing.view import View, pick, those_there
from headrace.seam import records as r
from headrace.seam.events import Events
from headrace.seam.protocol import Backend, Tidy, Transactions
from headrace.seam.tables import TableStore
from headrace.seam.tracks import TrackStore
from headrace.seam.usage import MeasureUsage
from headrace.types import JobState


class Composite:
    """Several stores that look like one. A job is in one of them at a time, so a lease is known to one, and what all
    others answer is that nothing happened.

    A subclass says which stores are in use, and where new jobs go.
    """

    transfers = None
    reserve = None
    windows = None
    blocking = None
    shadows: Mapping[str, Shadow]
    """What writes copies of new jobs, by the name of the shard that they go to."""

    def __init__(self, stores: Sequence[Backend]) -> None:
        self.all = tuple(stores)
        self.limits = merging.limits([store.limits for store in stores])
        every = self.all
        self.ticks = RoutedTicks(self.view) if all(store.ticks for store in every) else None
        self.policies = RoutedPolicies(self.view) if all(store.policies for store in every) else None
        self.references = RoutedReferences(self.view) if all(store.references for store in every) else None
        self.documents = (
            RoutedDocuments(self.view, self.still_home) if all(store.documents for store in every) else None
        )
        self.journal = RoutedJournal(self.view, self.still_home) if all(store.journal for store in every) else None
        self.parts = RoutedParts(self.view) if all(store.parts for store in every) else None
        self.archive = RoutedArchive(self.view) if all(store.archive for store in every) else None
        self.hints = RoutedHints(every) if any(store.hints is not None for store in every) else None

    @property
    def copies(self) -> dict[str, Counts]:
        """What became of copies of new jobs in this process, by the shard that they go to."""
        return {name: shadow.counts for name, shadow in self.shadows.items()}

    def _counting_with(self, other: Composite) -> Self:
        """The same, which counts its copies with those of another client of this process."""
        for name, shadow in self.shadows.items():
            shadow.counts = other.shadows[name].counts
        return self

    async def view(self) -> View:
        """The stores that are in use now."""
        raise NotImplementedError

    async def still_home(self, store: Backend) -> bool:
        """Whether a store is still home, now that something was written there."""
        return store is self.home

    async def place(self, view: View, rows: Sequence[r.Row], at: r.Stamp) -> list[r.Inserted]:
        """Store new jobs where they belong."""
        raise NotImplementedError

    def sibling(self) -> Backend:
        raise NotImplementedError

    @property
    def home(self) -> Backend:
        """The store of what belongs to no job, as far as is known without asking."""
        raise NotImplementedError

    # -- capabilities that one store has for all

    @property
    def tx(self) -> Transactions | None:
        return self.home.tx

    @property
    def tracks(self) -> TrackStore | None:
        return self.home.tracks

    @property
    def tables(self) -> TableStore | None:
        return self.home.tables

    @property
    def events(self) -> Events | None:
        return self.home.events

    @property
    def usage(self) -> MeasureUsage | None:
        return self.home.usage

    @property
    def tidy(self) -> Tidy | None:
        return self._tidy if any(store.tidy is not None for store in self.all) else None

    async def _tidy(self, clauses: Sequence[r.SweepClause], at: r.Stamp = None) -> Mapping[r.SweepTarget, int]:
        gone: dict[r.SweepTarget, int] = {}
        for store in (await self.view()).stores:
            for target, count in (await store.tidy(clauses, at) if store.tidy else {}).items():
                gone[target] = gone.get(target, 0) + count
        return gone

    # -- opening and closing

    async def open(self) -> None:
        for store in self.all:
            await store.open()
            self._opened(store)

    def _opened(self, store: Backend) -> None:
        if self.hints is not None:
            self.hints.opened(store)

    async def close(self) -> None:
        for store in self.all:
            await store.close()

    async def now(self, at: r.Stamp = None) -> int:
        view = await self.view()
        if not view.apart:
            return await view.home.now(at)
        return (await those_there(view, lambda store: store.now(at)))[0][0]

    # -- writing

    async def insert(self, rows: Sequence[r.Row], at: r.Stamp = None) -> list[r.Inserted]:
        return await self.place(await self.view(), rows, at) if rows else []

    async def claim(self, req: r.Claim, at: r.Stamp = None) -> r.Claimed:
        return await self._claim(await self.view(), req, at)

    async def _claim(self, view: View, req: r.Claim, at: r.Stamp) -> r.Claimed:
        """From one store after the other, while there is room."""
        found = await view.stores[0].claim(req, at)
        for store in view.stores[1:]:
            room = req.limit - len(found.jobs)
            if room <= 0:
                break
            found = merging.claimed(found, await store.claim(replace(req, limit=room), at), req.limit)
        return found

    async def finish(self, batch: Sequence[r.Settlement], at: r.Stamp = None) -> list[JobState | None]:
        return await self._finish(await self.view(), batch, at)

    async def _finish(self, view: View, batch: Sequence[r.Settlement], at: r.Stamp) -> list[JobState | None]:
        """A store that does not have the lease changes nothing."""
        states: list[JobState | None] = [None] * len(batch)
        left = list(range(len(batch)))
        problem: Unavailable | None = None
        there = False
        for store in view.stores:
            if not left:
                break
            try:
                answers = await store.finish([batch[n] for n in left], at)
            except Unavailable as error:
                if not view.apart:
                    raise
                problem = error
                continue
            there = True
            for n, state in zip(left, answers, strict=True):
                states[n] = state
            left = [n for n in left if states[n] is None]
        if left and problem is not None:
            raise (PartlyUnavailable(str(problem), states, left) if there else problem) from problem
        return states

    async def finish_and_claim(
        self, batch: Sequence[r.Settlement], req: r.Claim, at: r.Stamp = None
    ) -> tuple[list[JobState | None], r.Claimed]:
        view = await self.view()
        if view.alone is not None and view.alone.finish_and_claim is not None:
            return await view.alone.finish_and_claim(batch, req, at)
        return await self._finish(view, batch, at), await self._claim(view, req, at)

    async def renew(self, beat: r.Beat, at: r.Stamp = None) -> r.Renewed:
        """A lease that no store knows may be in one that is away: then it is not lost."""
        answers, problem = await those_there(await self.view(), lambda store: store.renew(beat, at))
        found = merging.renewed(answers)
        return found if problem is None else replace(found, lost=[], doubtful=True)

    async def reap(self, req: r.Reap, at: r.Stamp = None) -> list[r.Reaped]:
        view = await self.view()
        if view.apart:  # each may take back as many
            answers, _ = await those_there(view, lambda store: store.reap(req, at))
            return [one for answer in answers for one in answer]
        found: list[r.Reaped] = []
        for store in view.stores:
            if len(found) < req.limit:
                found += await store.reap(replace(req, limit=req.limit - len(found)), at)
        return found

    async def alter(self, sel: r.Selector, change: r.Change, at: r.Stamp = None) -> list[r.Altered]:
        return await alter(await self.view(), sel, change, at)

    async def sweep(self, clause: r.SweepClause, at: r.Stamp = None) -> r.Swept:
        return merging.swept((await those_there(await self.view(), lambda store: store.sweep(clause, at)))[0])

    # -- reading

    async def fetch(
        self, names: Sequence[r.JobId | r.JobKey], want: frozenset[str] = frozenset(), at: r.Stamp = None
    ) -> list[r.Record | None]:
        view = await self.view()
        if view.alone is not None:
            return await view.alone.fetch(names, want, at)
        answers, problem = await those_there(view, lambda store: store.fetch(names, want, at))
        found = pick(answers)
        missing = [n for n, record in enumerate(found) if record is None]
        if missing and problem is not None:
            raise PartlyUnavailable(str(problem), found, missing) from problem
        if missing and view.leg:
            moving = [names[n] for n in missing]
            await deliver_named(view, moving)
            for n, record in zip(missing, await view.stores[-1].fetch(moving, want, at), strict=True):
                found[n] = record
        return found

    async def scan(self, sel: r.Selector, after: str | None = None, limit: int = 100, at: r.Stamp = None) -> r.Page:
        """One store after the other: a job that moves meanwhile may be met twice, and is not missed. A store that is
        away comes last, and then the call raises."""
        view = await self.view()
        left, cursor = _position(after, len(view.stores))
        for turn in range(len(left)):
            try:
                page = await view.stores[left[0]].scan(sel, cursor, limit, at)
                break
            except Unavailable as error:
                if cursor is not None or not view.apart:
                    raise
                if turn == len(left) - 1:
                    raise (PartlyUnavailable(str(error)) if len(left) < len(view.stores) else error) from error
                left.append(left.pop(0))
        if page.after is None:
            left = left[1:]
        return replace(page, after=f"{','.join(map(str, left))}:{page.after or ''}" if left else None)

    async def stats(self, at: r.Stamp = None, *, queues: Sequence[str] | None = None) -> r.Stats:
        """Copies of jobs are no jobs."""
        answers, _ = await those_there(await self.view(), lambda store: store.stats(at, queues=queues))
        found = merging.stats(answers)
        return replace(found, queues=[queue for queue in found.queues if queue.queue != QUEUE])


def _position(after: str | None, stores: int) -> tuple[list[int], str | None]:
    """The numbers of the stores that are left, in order, and how far the first of them was read. There may be fewer
    stores than when ``after`` was given."""
    if after is None:
        return list(range(stores)), None
    left, _, cursor = after.partition(":")
    return [number for number in map(int, left.split(",")) if number < stores] or [stores - 1], cursor or None
