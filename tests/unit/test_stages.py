"""The small parts of the pipeline: deadlines, leases, middleware, events, clocks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace import Done, Event, EventKind, Job
from headrace.core.clock import ManualClock, SystemClock
from headrace.core.events import Observers
from headrace.core.listener import listen
from headrace.errors import Unavailable
from headrace.payloads.reference import Reference
from headrace.schedules.tick_notes import Notes
from headrace.seam.records import Beat, Claimed, Hint, Leased, Renewed, Settlement, Stamp
from headrace.testing.sim.loop import run
from headrace.types import JobState, Outcome
from headrace.worker.bell import Bell
from headrace.worker.claimer import Claimer
from headrace.worker.deadlines import Deadlines
from headrace.worker.job import CancelToken
from headrace.worker.leases import Leases
from headrace.worker.loader import Loader
from headrace.worker.middleware import Next, compose
from headrace.worker.renewer import Renewer
from headrace.worker.settler import Settler
from tests.unit.given import given
from tests.unit.kits import make_kit


class Stumbling:
    """Hints whose first stream breaks in a way that no store should break."""

    streams = 0

    @asynccontextmanager
    async def listen(self, topics: Collection[str]) -> AsyncIterator[AsyncIterator[Hint]]:
        self.streams += 1
        yield self._stream(self.streams)

    async def _stream(self, number: int) -> AsyncIterator[Hint]:
        yield Hint(f"queue:{number}")
        if number == 1:
            raise ValueError("what is this")
        await asyncio.Event().wait()


def test_a_listener_that_stumbles_starts_again() -> None:
    async def main() -> list[str]:
        heard: list[str] = []
        listening = asyncio.ensure_future(
            listen(Stumbling(), ["queue:1"], lambda hint: heard.append(hint.topic), Random(1))
        )
        await asyncio.sleep(60)
        listening.cancel()
        return heard

    assert run(main()) == ["queue:1", "queue:2"]


def leased(job_id: int, epoch: int = 1) -> Leased:
    return Leased(id=bytes([job_id]) * 16, queue="q", task="t", cells={}, epoch=epoch)


class TestDeadlines:
    @given(st.lists(st.tuples(st.integers(0, 100), st.booleans()), max_size=40))
    def test_each_is_called_in_its_time_unless_dropped(self, plan: list[tuple[int, bool]]) -> None:
        async def main() -> list[tuple[int, float]]:
            deadlines, called = Deadlines(), []
            loop = asyncio.get_running_loop()

            def note(number: int) -> Callable[[], None]:
                return lambda: called.append((number, loop.time()))

            for number, (seconds, dropped) in enumerate(plan):
                key = deadlines.add(seconds + 1, note(number))
                if dropped:
                    deadlines.drop(key)
            await asyncio.sleep(200)
            return called

        kept = [(number, float(seconds + 1)) for number, (seconds, dropped) in enumerate(plan) if not dropped]
        assert run(main()) == sorted(kept, key=lambda item: item[1])

    def test_one_timer_whatever_the_number(self) -> None:
        async def main() -> tuple[int, int]:
            deadlines = Deadlines()
            loop: Any = asyncio.get_running_loop()
            for n in range(1_000):
                deadlines.add(1_000 - n, lambda: None)
            live = len([handle for handle in loop._scheduled if not handle.cancelled()])
            deadlines.close()
            return live, len([handle for handle in loop._scheduled if not handle.cancelled()])

        assert run(main()) == (1, 0)

    def test_dropped_ones_are_forgotten(self) -> None:
        """A worker of quick jobs with long timeouts does not hoard them."""

        async def main() -> int:
            deadlines = Deadlines()
            for _ in range(10_000):
                deadlines.drop(deadlines.add(3_600, lambda: None))
            size = len(deadlines._heap)
            deadlines.close()
            return size

        assert run(main()) < 1_000

    def test_closed(self) -> None:
        async def main() -> list[int]:
            deadlines, called = Deadlines(), []
            deadlines.add(1, lambda: called.append(1))
            deadlines.close()
            await asyncio.sleep(10)
            return called

        assert run(main()) == []

    def test_a_timer_that_is_early_by_the_resolution_of_the_clock_counts(self) -> None:
        """A loop in virtual time fires what is due within a microsecond. A deadline that is not quite there must not be
        set for the same instant again, and again."""

        async def main() -> list[int]:
            deadlines, called = Deadlines(), []
            await asyncio.sleep(0.1)
            for number in range(1_000):
                deadlines.add(15.0 + number * 0.0010003, lambda: called.append(1))
            await asyncio.sleep(20)
            return called

        assert len(run(main())) == 1_000


class TestLeases:
    def test_young_ones_are_not_renewed(self) -> None:
        """A job that ends within half a lease is never renewed."""
        leases = Leases(10)
        leases.grant([leased(1), leased(2)], now=100)
        assert leases.aging(104.9) == []
        assert leases.aging(105) == [(b"\1" * 16, 1), (b"\2" * 16, 1)]
        leases.renewed([(b"\1" * 16, 1)], now=105)
        assert leases.aging(106) == [(b"\2" * 16, 1)]

    def test_end(self) -> None:
        leases = Leases(10)
        leases.grant([leased(1)], now=100)
        assert len(leases) == 1
        leases.drop(b"\1" * 16, 1)
        leases.drop(b"\1" * 16, 1)
        assert len(leases) == 0
        assert leases.aging(200) == []

    def test_run_out(self) -> None:
        """By this process's own count, taken before the claim was sent: never later than the store's."""
        leases = Leases(10)
        leases.grant([leased(1)], now=100)
        assert not leases.over(b"\1" * 16, 1, 109.9)
        assert leases.over(b"\1" * 16, 1, 110)
        assert leases.over(b"\2" * 16, 1, 0)
        leases.renewed([(b"\1" * 16, 1)], now=109)
        assert not leases.over(b"\1" * 16, 1, 118)

    def test_a_renewal_that_meets_the_next_lease_of_its_job_leaves_that_alone(self) -> None:
        """The heartbeat's thread looks a lease up, and before it goes on the loop drops it and grants the job again."""
        leases = Leases(10)

        class Overtaken(dict[Any, Any]):
            def get(self, key: Any, default: Any = None) -> Any:
                found = super().get(key, default)
                if not overtaken:
                    overtaken.append(True)
                    leases.drop(b"\1" * 16, 1)
                    leases.grant([leased(1, epoch=2)], now=103)
                return found

        overtaken: list[bool] = []
        leases.grant([leased(1, epoch=1)], now=100)
        leases._held = Overtaken(leases._held)
        leases.renewed([(b"\1" * 16, 1)], now=105)
        assert leases.current(b"\1" * 16, 2)
        assert leases.aging(108) == [(b"\1" * 16, 2)]

    def test_news_of_an_older_epoch_mean_nothing(self) -> None:
        leases = Leases(10)
        leases.grant([leased(1, epoch=1)], now=100)
        leases.grant([leased(1, epoch=2)], now=103)
        leases.renewed([(b"\1" * 16, 1)], now=200)
        assert leases.over(b"\1" * 16, 2, 114)
        assert leases.current(b"\1" * 16, 2)
        assert not leases.current(b"\1" * 16, 1)

    def test_a_lease_is_over_when_its_job_is_held_under_a_later_one(self) -> None:
        """As when it was taken back, and claimed again, while the first copy of the job waited for a slot."""
        leases = Leases(10)
        leases.grant([leased(1, epoch=1)], now=100)
        leases.grant([leased(1, epoch=2)], now=101)
        assert leases.over(b"\1" * 16, 1, 102)
        assert not leases.over(b"\1" * 16, 2, 102)


class TestRenewer:
    async def test_a_lease_that_was_in_doubt_and_then_in_hand_is_out_of_doubt_once_it_is_renewed(self) -> None:
        told: list[tuple[list[tuple[bytes, int]], bool]] = []
        lease = (b"\1" * 16, 1)

        class Store:
            answers: ClassVar[list[Any]] = [Unavailable("away"), Renewed([], busy=[lease]), Renewed([])]

            async def renew(self, beat: Beat, at: Stamp = None) -> Renewed:
                answer = self.answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return answer  # type: ignore[no-any-return]

        def doubted(leases: Sequence[tuple[bytes, int]], *, doubtful: bool) -> None:
            told.append((list(leases), doubtful))

        kit = make_kit()
        kit.leases.now = lambda: 111.0
        kit.leases.grant([leased(1)], now=100)
        orders: Any = SimpleNamespace(hear=lambda renewed: None, warn=lambda job: None, renewed=lambda job, age: None)
        runner: Any = SimpleNamespace(alive=1, busy=1, doubt=doubted)
        renewer = Renewer(kit, runner, orders)
        store: Any = Store()
        for _ in range(3):
            await renewer._renew(store)
        assert [doubtful for found, doubtful in told if lease in found] == [True, False]


class TestLoader:
    async def test_what_comes_after_the_stop_goes_back_unloaded(self) -> None:
        """A claim was answered late."""
        kit, nobody = make_kit(), cast(Any, None)
        loader = Loader(kit, nobody, nobody, lambda task: None)
        await loader.close()
        cell = Reference(500_000, bytes(8), 0, 5, bytes(4)).cell
        jobs = [replace(leased(n), cells={"blob": cell}, begun=begun) for n, begun in ((1, False), (2, True))]
        kit.leases.grant([*jobs, leased(3)], kit.leases.now())
        loader.deliver(jobs)
        given_back = [(one.id, one.state, one.unbegun) for one in kit.settler.take(10)]
        assert given_back == [(jobs[0].id, JobState.AVAILABLE, True), (jobs[1].id, JobState.AVAILABLE, False)]
        assert loader.loading() == 0


class TestClaimer:
    async def test_looks_again_in_a_moment_each_time_that_a_due_job_is_locked(self) -> None:
        """Longer and longer while it gets nothing; and not so after a claim that brought jobs."""
        kit = make_kit()
        runner: Any = SimpleNamespace(deliver=lambda jobs: None, alone=False, companions=lambda: 0, busy=0)
        strays: Any = SimpleNamespace(stuck=False)
        claimer = Claimer(kit, None, runner, slots=1, prefetch=0, strays=strays, companions=runner.companions)
        pauses: list[float] = []
        claimer._sleep = pauses.append  # type: ignore[method-assign]
        for number in range(20):
            claimer.got(Claimed([], next_in=0), 1, 0.0, 0.0)
            claimer.got(Claimed([], next_in=0), 1, 0.0, 0.0)
            claimer.got(Claimed([leased(number)]), 1, 0.0, 0.0)
        assert pauses == [0.005, 0.01] * 20

    async def test_a_job_on_its_last_chance_does_not_keep_it_from_looking_for_others(self) -> None:
        """It waits for what is due next, or looks again in a moment, as if that job were not there."""
        kit = make_kit()
        runner: Any = SimpleNamespace(deliver=lambda jobs: None, alone=False, companions=lambda: 0, busy=0)
        helper: Any = SimpleNamespace(useful=True, start=lambda: None)
        claimer = Claimer(kit, None, runner, slots=8, prefetch=0, helper=helper)
        pauses: list[float] = []
        claimer._sleep = pauses.append  # type: ignore[method-assign]
        for jobs, next_in in (([], 0), ([], 0), ([leased(1)], 0), ([], 250_000)):
            claimer.got(Claimed(jobs, next_in=next_in, passed_over=True, chosen=True), 8, 0.0, 0.0)
        assert pauses == [0.005, 0.01, 0.0, 0.25]
        claimer.got(Claimed([], passed_over=True), 8, 0.0, 0.0)
        assert 45 <= pauses[-1] <= 75

    async def test_a_burst_ends_though_two_trips_never_come_back_together(self) -> None:
        kit = make_kit()
        runner: Any = SimpleNamespace(deliver=lambda jobs: None, alone=False, companions=lambda: 0, busy=0)
        strays: Any = SimpleNamespace(stuck=False)
        claimer = Claimer(kit, None, runner, slots=10, prefetch=0, strays=strays, companions=runner.companions)
        claimer.burst = True
        under_way = deque([(claimer.depart(6), 6), (claimer.depart(4), 4)])
        for _ in range(10):
            claim, asked = under_way.popleft()
            claimer.request(asked, 0)
            claimer.arrive(claim, asked)
            claimer.got(Claimed([]), asked, 0.0, 0.0)
            if want := claimer.want():
                under_way.append((claimer.depart(want), want))
            if not under_way:
                break
        assert claimer.empty.is_set()
        claimer.close()

    async def test_a_burst_looks_again_when_its_last_job_was_settled_while_a_claim_was_under_way(self) -> None:
        kit = make_kit()
        runner: Any = SimpleNamespace(deliver=lambda jobs: None, alone=False, companions=lambda: 0, busy=0)
        strays: Any = SimpleNamespace(stuck=False)
        claimer = Claimer(kit, None, runner, slots=10, prefetch=0, strays=strays, companions=runner.companions)
        claimer.burst = True
        kit.leases.grant([leased(1)], now=0)
        kit.settler.add(Settlement(b"\1" * 16, 1, "w", JobState.COMPLETED))
        claimer.request(9, 0)
        kit.settler.answered(kit.settler.take(10), [JobState.COMPLETED])
        claimer.got(Claimed([]), 9, 0.0, 0.0)  # it looked before the job had ended
        assert not claimer.empty.is_set()
        assert claimer.want() == 10
        claimer.request(10, 0)
        claimer.got(Claimed([]), 10, 0.0, 0.0)
        assert claimer.empty.is_set()
        claimer.close()


class TestSettler:
    async def test_the_answer_to_an_old_run_does_not_end_the_lease_of_a_new_one(self) -> None:
        """5.3-2: a job lost and claimed again by the same worker is held under its new epoch, whatever comes of the
        old one; without its lease it would not be renewed, and would be lost once more."""
        leases = Leases(10)
        settler = Settler(leases, Observers(), Notes(None, SystemClock(), Random(1)), Bell())
        leases.grant([leased(1, epoch=1)], now=100)
        settler.add(Settlement(b"\1" * 16, 1, "holder", JobState.COMPLETED))
        leases.grant([leased(1, epoch=2)], now=101)
        settler.answered(settler.take(10), [None])
        assert leases.current(b"\1" * 16, 2)

    async def test_the_answer_to_a_run_ends_its_lease(self) -> None:
        leases = Leases(10)
        settler = Settler(leases, Observers(), Notes(None, SystemClock(), Random(1)), Bell())
        leases.grant([leased(1)], now=100)
        settler.add(Settlement(b"\1" * 16, 1, "holder", JobState.COMPLETED))
        assert (len(settler), len(leases), settler.quiet.is_set()) == (1, 1, False)
        settler.answered(settler.take(10), [JobState.COMPLETED])
        assert (len(settler), len(leases), settler.quiet.is_set()) == (0, 0, True)


class TestMiddleware:
    async def test_the_first_is_outermost(self) -> None:
        order: list[str] = []

        def named(name: str) -> Any:
            async def middleware(job: Job[Any], call: Next) -> Outcome:
                order.append(f"{name} in")
                outcome = await call(job)
                order.append(f"{name} out")
                return outcome

            return middleware

        async def innermost(job: Job[Any]) -> Outcome:
            order.append("innermost")
            return Done(1)

        job: Any = object()
        assert await compose([named("a"), named("b")], innermost)(job) == Done(1)
        assert order == ["a in", "b in", "innermost", "b out", "a out"]

    async def test_none(self) -> None:
        async def innermost(job: Job[Any]) -> Outcome:
            return Done(1)

        assert compose([], innermost) is innermost


class TestObservers:
    def test_are_falsy_when_there_are_none(self) -> None:
        observers = Observers()
        assert not observers
        observers.add(print)
        assert observers
        observers.remove(print)
        assert not observers

    def test_hear_in_order_and_one_that_raises_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        heard: list[str] = []

        def broken(event: Event) -> None:
            raise RuntimeError("no")

        observers = Observers()
        for observer in (lambda e: heard.append("a"), broken, lambda e: heard.append("b")):
            observers.add(observer)
        observers.tell(Event(EventKind.QUEUED))
        assert heard == ["a", "b"]
        assert "an observer raised on queued" in caplog.text

    def test_one_may_leave_while_it_is_told(self) -> None:
        """An observer that only wants one event takes itself off; the others are told all the same."""
        observers, heard = Observers(), []

        def once(event: Event) -> None:
            heard.append("once")
            observers.remove(once)

        observers.add(once)
        observers.add(lambda event: heard.append("always"))
        observers.tell(Event(EventKind.QUEUED))
        observers.tell(Event(EventKind.QUEUED))
        assert heard == ["once", "always", "always"]

    def test_events_are_values(self) -> None:
        event = Event(EventKind.FAILED, b"\1" * 16, "q", "t", "k", 2, detail="why")
        assert (event.job_id.bytes, event.kind, event.kind.value) == (b"\1" * 16, "failed", "failed")
        with pytest.raises(AttributeError):
            event.detail = "x"  # type: ignore[misc]


class TestClocks:
    def test_manual(self) -> None:
        clock = ManualClock(10)
        clock.advance("1s")
        assert clock.now() == clock.stamp() == 1_000_010

    def test_system(self) -> None:
        """The store keeps its own time."""
        clock = SystemClock()
        assert clock.stamp() is None
        assert 1_700_000_000_000_000 < clock.now() < 5_000_000_000_000_000


class TestCancelToken:
    def test_the_first_reason_stays(self) -> None:
        token = CancelToken()
        assert not token.requested
        token.check()
        token.request("timed out")
        token.request("cancelled")
        assert (token.requested, token.reason) == (True, "timed out")
        with pytest.raises(asyncio.CancelledError, match="timed out"):
            token.check()

    async def test_wakes_a_waiting_thread(self) -> None:
        token = CancelToken()
        assert not token.wait(0)
        waiting = asyncio.ensure_future(asyncio.to_thread(token.wait, 5))
        await asyncio.sleep(0)
        token.request("cancelled")
        assert await waiting
        assert token.wait(0)
