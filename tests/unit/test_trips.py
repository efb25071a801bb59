"""Trips with outcomes that the store refuses: which are dropped, and which are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.backends.memory import MemoryBackend
from headrace.errors import BackendError, Unavailable
from headrace.seam.records import Claim, JobId, Row, Settlement, Stamp
from headrace.testing.sim.clock import SimClock
from headrace.testing.sim.loop import run
from headrace.types import JobState
from headrace.worker.trips import Trips
from tests.unit.kits import make_kit

LEASE = 30.0
BAD, FINE = b"\1" * 16, b"\2" * 16
AWAY = Unavailable("nobody there")


class Heart:
    """Beats until then."""

    def __init__(self, until: float) -> None:
        self._until = until

    @property
    def beat(self) -> float:
        return min(asyncio.get_running_loop().time(), self._until)


judge: Any = SimpleNamespace(refused=lambda settlement, _: settlement)


class Moody(MemoryBackend):
    """Refuses outcomes as it is told to."""

    def __init__(self, now: Callable[[], int], refuses: Callable[[set[JobId], float], Exception | None]) -> None:
        super().__init__(now=now)
        self._refuses = refuses

    async def finish(self, batch: Sequence[Settlement], at: Stamp = None) -> list[JobState | None]:
        error = self._refuses({settlement.id for settlement in batch}, asyncio.get_running_loop().time())
        if error is not None:
            raise error
        return await super().finish(batch, at)


def outcomes(
    refuses: Callable[[set[JobId], float], Exception | None], beats_until: float, after: float
) -> dict[JobId, JobState | None]:
    """What the store has of two jobs that are done at 0, and whose worker beats until then; None: the outcome was
    dropped."""

    async def main() -> dict[JobId, JobState | None]:
        loop: Any = asyncio.get_running_loop()
        clock = SimClock(loop)
        store = Moody(clock.now, refuses)
        kit = make_kit(store, clock, lease=LEASE)
        await store.insert([Row(job_id, "q", "t", {}) for job_id in (BAD, FINE)])
        claimed = (await store.claim(Claim("w", ("q",), 2, 10**12))).jobs
        kit.leases.grant(claimed, loop.time())
        settler, heart = kit.settler, cast(Any, Heart(beats_until))
        trips = Trips(kit, settler=settler, claimer=None, refuse=judge.refused, renewer=heart)
        for job in claimed:
            settler.add(Settlement(job.id, job.epoch, "w", JobState.COMPLETED))
        running = asyncio.ensure_future(trips.run())
        await asyncio.sleep(after)
        waiting = len(settler)
        running.cancel()
        records = await store.fetch([BAD, FINE])
        states = {record.id: record.state for record in records if record is not None}
        unsettled = [job_id for job_id, state in states.items() if state is JobState.RUNNING]
        return {job_id: None if job_id in unsettled and not waiting else state for job_id, state in states.items()}

    found: dict[JobId, JobState | None] = run(main())
    return found


def only_bad(error: Exception) -> Callable[[set[JobId], float], Exception | None]:
    return lambda ids, _: error if BAD in ids else None


@pytest.mark.parametrize("error", [AWAY, BackendError("again and again")])
def test_an_outcome_that_is_refused_while_others_are_taken_is_dropped_after_a_while(error: Exception) -> None:
    """The lease of its job then runs out by itself."""
    assert outcomes(only_bad(error), beats_until=10**9, after=3 * LEASE) == {BAD: None, FINE: JobState.COMPLETED}


def test_it_is_not_dropped_sooner() -> None:
    early = outcomes(only_bad(AWAY), beats_until=10**9, after=1.9 * LEASE)
    assert early == {BAD: JobState.RUNNING, FINE: JobState.COMPLETED}


def test_nothing_is_dropped_while_the_store_takes_no_outcome_at_all() -> None:
    """Though it answers beats: what refuses everybody is no job's fault."""
    back = 20 * LEASE
    assert outcomes(lambda _, now: AWAY if now < back else None, beats_until=10**9, after=back + LEASE) == {
        BAD: JobState.COMPLETED,
        FINE: JobState.COMPLETED,
    }


@pytest.mark.parametrize("beats_until", [0.0, 1.5 * LEASE])
def test_nothing_is_dropped_while_the_store_is_away(beats_until: float) -> None:
    """Even if it took one of them before it went."""
    back = 20 * LEASE

    def refuses(ids: set[JobId], now: float) -> Exception | None:
        gone = now >= beats_until or BAD in ids
        return AWAY if gone and now < back else None

    assert outcomes(refuses, beats_until=beats_until, after=back + LEASE) == {
        BAD: JobState.COMPLETED,
        FINE: JobState.COMPLETED,
    }


class Wanting:
    """Wants one job, if it is open."""

    def __init__(self) -> None:
        self.open = True

    def want(self) -> int:
        return int(self.open)

    def request(self, limit: int, settling: int) -> Claim:
        self.open = False
        return Claim("w", ("q",), limit, 10**12)

    def depart(self, asked: int) -> None: ...

    def arrive(self, claim: None, asked: int) -> None: ...

    def got(self, *answer: object) -> None: ...


class SlowRoom:
    """Makes room for what has ended when it is let."""

    def __init__(self) -> None:
        self.asked, self.let = asyncio.Event(), asyncio.Event()

    def weigh(self, batch: Sequence[Settlement]) -> tuple[int, dict[JobState, Any]]:
        return len(batch), {}

    async def make_room(self, loads: object) -> None:
        self.asked.set()
        await self.let.wait()

    def stored(self, loads: object) -> None: ...


@pytest.mark.parametrize(("is_open", "state"), [(True, JobState.RUNNING), (False, JobState.AVAILABLE)])
def test_a_claimer_that_is_closed_while_room_is_made_claims_nothing(is_open: bool, state: JobState) -> None:
    """A worker that stops has given back its jobs by then, and would leave with those."""

    async def main() -> list[JobState | None]:
        loop: Any = asyncio.get_running_loop()
        clock = SimClock(loop)
        store = MemoryBackend(now=clock.now)
        kit = make_kit(store, clock, lease=LEASE)
        await store.insert([Row(job_id, "q", "t", {}) for job_id in (BAD, FINE)])
        [job] = (await store.claim(Claim("w", ("q",), 1, 10**12))).jobs
        kit.leases.grant([job], loop.time())
        wanting, room, heart = Wanting(), SlowRoom(), cast(Any, Heart(10**9))
        settler = kit.settler
        trips = Trips(
            kit, settler=settler, claimer=cast(Any, wanting), refuse=judge.refused, renewer=heart, room=cast(Any, room)
        )
        settler.add(Settlement(job.id, job.epoch, "w", JobState.COMPLETED))
        running = asyncio.ensure_future(trips.run())
        await room.asked.wait()
        wanting.open = is_open
        room.let.set()
        await settler.quiet.wait()
        await asyncio.sleep(1)
        running.cancel()
        return [record and record.state for record in await store.fetch([BAD, FINE])]

    assert run(main()) == [JobState.COMPLETED, state]
