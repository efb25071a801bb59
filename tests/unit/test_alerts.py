"""Alerts: told once and not with every breath, in the log too, on the worker's loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import Event, EventKind
from headrace.backends.memory import MemoryBackend
from headrace.core.alerts import Alert, Throttle
from headrace.core.clock import SystemClock
from headrace.core.events import Observers
from headrace.schedules.tick_notes import Notes
from headrace.seam.records import Claim, Leased, Row, Settlement
from headrace.testing.sim.loop import run
from headrace.types import JobState
from headrace.worker.bell import Bell
from headrace.worker.leases import Leases
from headrace.worker.renewer import Renewer, RenewerThread
from headrace.worker.settler import Settler
from tests.unit.kits import make_kit

LATE, FULL = Alert.SCHEDULE_LATE, Alert.QUEUE_FULL


class TestThrottle:
    def test_of_each_subject_once_a_minute(self) -> None:
        throttle = Throttle()
        assert [throttle.allows(LATE, "a", now) for now in (100, 100, 159.9, 160, 161)] == [
            True,
            False,
            False,
            True,
            0,
        ]

    def test_names_and_subjects_do_not_count_for_each_other(self) -> None:
        throttle = Throttle()
        assert throttle.allows(LATE, "a", 100)
        assert throttle.allows(LATE, "b", 100)
        assert throttle.allows(FULL, "a", 100)

    def test_a_storm_is_cut_off_and_forgotten(self) -> None:
        throttle = Throttle()
        assert sum(throttle.allows(LATE, f"s{n}", 100) for n in range(10_000)) == 100
        assert throttle.allows(FULL, "q", 100)
        assert sum(throttle.allows(LATE, f"s{n}", 160) for n in range(10_000)) == 100
        assert len(throttle._told[LATE]) == 100

    def test_an_instant_of_another_clock_counts_for_nothing(self) -> None:
        """As when a client goes on, on another loop."""
        throttle = Throttle()
        assert throttle.allows(LATE, "a", 1_000_000)
        assert throttle.allows(LATE, "a", 5)


class TestTelling:
    def test_an_alert_has_a_name_and_a_sentence(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING, "headrace")
        observers, heard = Observers(), []
        observers.add(heard.append)
        for _ in range(3):
            observers.alert(LATE, "s", "it is late: look", queue="q")
        [event] = heard
        assert (event.kind, event.alert, event.queue) == (EventKind.ALERT, "schedule_late", "q")
        assert event.detail == "schedule_late: it is late: look"
        assert [(one.levelname, one.getMessage()) for one in caplog.records] == [("WARNING", event.detail)]

    def test_it_is_logged_if_nobody_observes(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING, "headrace")
        Observers().alert(LATE, "s", "it is late")
        assert "schedule_late: it is late" in caplog.text

    def test_other_events_are_none(self) -> None:
        assert Event(EventKind.ERROR, detail="queue_full: no").alert == ""

    def test_a_refused_job_alerts_to_its_queue(self) -> None:
        async def main() -> list[tuple[str, str]]:
            observers, heard = Observers(), []
            observers.add(lambda event: heard.append((event.kind.value, event.queue)))
            for queue in ("a", "b", "a", "a"):
                observers.tell(Event(EventKind.REFUSED, queue=queue))
            await asyncio.sleep(60)
            observers.tell(Event(EventKind.REFUSED, queue="a"))
            return heard

        refused, alert = "refused", "alert"
        heard = run(main())
        assert heard[:4] == [(refused, "a"), (alert, "a"), (refused, "b"), (alert, "b")]
        assert heard[4:] == [(refused, "a"), (refused, "a"), (refused, "a"), (alert, "a")]


class TestLeases:
    def held(self, leases: Leases, since: float) -> Leased:
        job = Leased(id=b"\1" * 16, queue="q", task="t", cells={}, epoch=1)
        leases.grant([job], since)
        return job

    def test_which_were_nearly_over_when_they_were_renewed(self) -> None:
        leases = Leases(10)
        job = self.held(leases, since=100)
        assert leases.renewed([(job.id, 1)], now=109) == []
        assert leases.renewed([(job.id, 1)], now=118.1) == [job]
        assert leases.renewed([(job.id, 1)], now=118.2) == []
        assert leases.renewed([(job.id, 2)], now=200) == []

    def test_which_were_nearly_over_when_their_jobs_ended(self) -> None:
        leases = Leases(10)
        job = self.held(leases, since=100)
        done, other = (Settlement(job.id, epoch, "w", JobState.COMPLETED) for epoch in (1, 2))
        assert leases.settled([done], now=109) == {}
        self.held(leases, since=100)
        assert leases.settled([other, done], now=109.1) == {1: job}
        assert leases.settled([done], now=109.1) == {}

    @pytest.mark.parametrize(
        ("age", "answer", "alerts"),
        [(8.9, JobState.COMPLETED, 0), (9.5, JobState.COMPLETED, 1), (9.5, JobState.CANCELLED, 1), (10.5, None, 0)],
    )
    def test_the_end_of_a_job_tells(self, age: float, answer: JobState | None, alerts: int) -> None:
        """But not where the lease is lost: that is told as such."""

        async def main() -> list[Event]:
            leases, observers, heard = Leases(10, asyncio.get_running_loop().time), Observers(), []
            observers.add(heard.append)
            settler = Settler(leases, observers, Notes(None, SystemClock(), Random(1)), Bell())
            job = self.held(leases, since=asyncio.get_running_loop().time() - age)
            settler.add(Settlement(job.id, 1, "holder", JobState.COMPLETED))
            settler.answered(settler.take(10), [answer])
            return heard

        heard = run(main())
        assert [(one.alert, one.id, one.queue, one.task) for one in heard] == [
            ("lease_nearly_over", b"\1" * 16, "q", "t")
        ] * alerts

    async def test_the_heartbeat_tells_on_the_loop_of_the_worker(self) -> None:
        backend = MemoryBackend()
        await backend.insert([Row(id=b"\1" * 16, queue="q", task="t", cells={})])
        kit, told = make_kit(backend), asyncio.get_running_loop().create_future()
        claimed = await backend.claim(Claim(kit.holder, ("q",), 1, 10_000_000))
        orders: Any = SimpleNamespace(
            hear=lambda renewed: None,
            renewed=lambda job, age: None,
            warn=lambda job: told.set_result((job.id, threading.current_thread())),
        )
        runner: Any = SimpleNamespace(alive=1, busy=1)
        kit.leases.grant(claimed.jobs, kit.leases.now() - 9.5)
        renewer = Renewer(kit, runner, orders)
        heartbeat = RenewerThread(renewer, backend)
        heartbeat.start()
        try:
            async with asyncio.timeout(60):
                assert await told == (b"\1" * 16, threading.current_thread())
        finally:
            await heartbeat.stop()
