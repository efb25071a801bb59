"""The sweeper: removes what is over its bounds, in small steps, for the duty and for the janitor."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from headrace.core.clock import Clock
from headrace.core.config import RetentionSettings
from headrace.core.events import Event, EventKind, Observers
from headrace.core.slow_calls import timed
from headrace.keeping.aged import Tally, count_past, pages_until, past
from headrace.keeping.archive_marks import Marks
from headrace.keeping.bounds import Bounds, bounds_of
from headrace.keeping.papers import Last, Papers, Step
from headrace.keeping.safety import Safety
from headrace.keeping.shed import DeadLetters
from headrace.seam.archive import Mark
from headrace.seam.protocol import Backend
from headrace.seam.records import SweepClause, SweepTarget, Swept
from headrace.types import JobState


class Situation(Struct, frozen=True):
    """What a run goes by."""

    now: int
    bounds: Mapping[JobState, Bounds]
    last: Last
    ended_by: Mapping[JobState, int] = {}
    """By state: what ended later is not archived yet, and stays. Those that are missing need no archive."""


class Sweeper:
    """Between two steps it rests for as long as the last one took, so that a long backlog leaves half of the store's
    time to other work."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        observers: Observers,
        settings: RetentionSettings,
        spare: int,
        *,
        vault: bool,
    ) -> None:
        """``spare``: what ended more recently than this stays, in microseconds. ``vault``: whether this process knows
        of one. Then nothing goes that is not archived, even before anybody has begun to archive."""
        self._backend = backend
        self._clock = clock
        self._observers = observers
        self._settings = settings
        self.defaults = bounds_of(settings, ())
        """What counts where the store has no rules."""
        self._spare = spare
        self._unarchived = Marks() if vault else None
        self._safety = Safety(settings.safety)
        self.papers = None if backend.documents is None else Papers(backend.documents)

    async def look(self) -> Situation:
        """The rules as they are now."""
        now = await self._backend.now(self._clock.stamp())
        if self.papers is None:
            return Situation(now, self.defaults, Last(at=now))
        rules, last, marks = await self.papers.read()
        bounds, marks = bounds_of(self._settings, rules), marks or self._unarchived
        return Situation(now, bounds, last, {} if marks is None else marks.ended_by())

    async def stop(self, bounds: Bounds, situation: Situation) -> str:
        """Why what is too old may not be deleted now; empty: it may."""
        archive, now = self._backend.archive, situation.now
        odd = self._safety.clock(now, situation.last)
        if archive is None or self.papers is None or not bounds.ages:
            return ""
        if not odd and self._safety.trusts(bounds, situation.last):
            return ""
        look = SweepClause(target=SweepTarget(bounds.state.value), dry_run=True, limit=1)
        total = (await self._backend.sweep(look, self._clock.stamp())).kept
        most = 0 if odd else self._safety.most(total)
        found = await count_past(archive, bounds, now, self._latest(bounds, situation), most, self._clock.stamp())
        return "" if found <= most else odd or self._safety.too_many(bounds.state, total)

    def is_odd(self, situation: Situation) -> bool:
        """Whether the store's clock may be wrong."""
        return bool(self._safety.clock(situation.now, situation.last))

    def clause(self, bounds: Bounds, situation: Situation, *, by_age: bool) -> SweepClause:
        """What all jobs of a state are swept by."""
        return bounds.clause(self._spare, situation.ended_by.get(bounds.state), by_age=by_age)

    async def sweep(self, clause: SweepClause) -> Step:
        """Sweep until the clause condemns nothing more."""
        loop = asyncio.get_running_loop()
        step = Step(target=clause.target.value, deleted=0)
        while True:
            began = loop.time()
            swept = await timed(self._observers, "sweep", self._backend.sweep(clause, self._clock.stamp()))
            step = self._add(step, swept)
            if not swept.more:
                return step
            await asyncio.sleep(loop.time() - began)

    async def preview(self, bounds: Bounds, situation: Situation) -> Step:
        """What would go of one state: what is too old, and as long as there are too many, the oldest of the others, or
        of those tenants that have most dead letters."""
        archive = self._backend.archive
        assert archive is not None
        kept = {one.target: one for one in (await self._backend.stats(self._clock.stamp())).kept}
        count, size = (one.count, one.bytes) if (one := kept.get(bounds.state.value)) else (0, 0)
        latest, ages = self._latest(bounds, situation), bounds.ages
        tally = Tally(bounds, situation.now, latest)
        if ages:
            async for page in pages_until(
                archive, bounds, min(situation.now - ages[0], latest), None, self._clock.stamp()
            ):
                tally.add_past(page)
        excess, over = tally.over(count, size)
        if (excess > 0 or over > 0) and bounds.state is JobState.FAILED:
            letters = DeadLetters(tally.past, latest)
            async for page in pages_until(archive, bounds, situation.now, None, self._clock.stamp()):
                letters.add(page)
            tally.count(letters.shed(self.clause(bounds, situation, by_age=False)))
        elif excess > 0 or over > 0:
            async for page in pages_until(archive, bounds, latest, None, self._clock.stamp()):
                if not tally.add_oldest(page, excess, over):
                    break
        return Step(
            target=bounds.state.value, deleted=tally.deleted, bytes=tally.bytes, kept=count - tally.deleted,
            cutoff=min(situation.now - ages[0], latest) if ages else None, retention=ages[0] if ages else None,
        )  # fmt: skip

    async def sweep_past(
        self, bounds: Bounds, situation: Situation, age: int | None = None, after: Mark | None = None
    ) -> tuple[Step, Mark | None]:
        """Remove the jobs that are too old by the rules of their queues and tasks: all, or those that are kept for
        ``age``. Returns the mark up to which none is left."""
        archive, loop = self._backend.archive, asyncio.get_running_loop()
        assert archive is not None
        latest, now = self._latest(bounds, situation), situation.now
        oldest = age if age is not None else bounds.ages[0]
        step = Step(
            target=bounds.state.value, deleted=0, cutoff=min(now - oldest, latest), retention=oldest
        )  # fmt: skip
        clean = True
        async for page in pages_until(archive, bounds, min(now - oldest, latest), after, self._clock.stamp()):
            began = loop.time()
            doomed = [one for one in past(bounds, page, now, latest) if age in (None, bounds.age_of(one))]
            held = any(record.held for record in page.records)
            if doomed:
                named = SweepClause(
                    target=SweepTarget(bounds.state.value), jobs=[(one.id, one.epoch) for one in doomed],
                    older_than=oldest, spare=self.spare_of(bounds), ended_by=situation.ended_by.get(bounds.state),
                )  # fmt: skip
                swept = await timed(self._observers, "sweep", self._backend.sweep(named, self._clock.stamp()))
                step = self._add(step, swept)
                clean = clean and swept.removed == len(doomed)
            clean = clean and not held
            if clean and page.last is not None and page.last.ended_at <= min(now - oldest, latest):
                after = page.last
            await asyncio.sleep(loop.time() - began)
        return step, after

    def spare_of(self, bounds: Bounds) -> int:
        """How long jobs of this state stay, whatever the bounds say."""
        return bounds.spare(self._spare)

    def _latest(self, bounds: Bounds, situation: Situation) -> int:
        latest = situation.now - self.spare_of(bounds)
        return min(latest, situation.ended_by.get(bounds.state, latest))

    def _add(self, step: Step, swept: Swept) -> Step:
        if swept.removed:
            detail = f"{swept.removed} from {step.target}"
            self._observers.tell(Event(EventKind.SWEPT, detail=detail, count=swept.removed))
        return replace(
            step, deleted=step.deleted + swept.removed, bytes=step.bytes + swept.bytes, kept=swept.kept
        )  # fmt: skip
