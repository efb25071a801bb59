"""Metrics: right, and bounded whatever names jobs have."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace import App, Client, Every, immediate
from headrace.backends.memory import MemoryBackend
from headrace.core.clock import ManualClock
from headrace.core.config import HttpSettings
from headrace.core.events import Observers
from headrace.core.meter import Meter
from headrace.core.upkeep import MOST, OTHER
from headrace.keeping.retention import Retention
from headrace.keeping.waiting_ends import WaitingEnds, look_at_ended
from headrace.routing.mover import Mover
from headrace.routing.moving import FRESH, Moving
from headrace.seam.records import Claim, Leased, QueueStats, Stats, WorkerStats
from headrace.seam.windows import WindowState
from headrace.web.families import expose
from headrace.web.gather import _add
from headrace.web.metrics import EventCounts, Metrics
from headrace.web.server import serve_http
from headrace.web.store_metrics import Beside, StoreNumbers, of_store
from tests.facades.harness import Store, settings
from tests.web_client import ask

SECOND = 1_000_000
START = 1_800_000_000 * SECOND
CAP = 20_000
"""Samples in one scrape, whatever happens."""


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    named = {(one.name, tuple(sorted(one.labels.items()))): one.value for one in found}
    assert len(named) == len(found), "each series once"
    return named


async def test_a_drain_in_numbers(site: Any) -> None:
    place = await site()
    send = place.app.tasks["send"]
    await place.app.enqueue_many([send.job(user) for user in range(40)])
    await send.options(key="one").enqueue(1)
    await send.options(key="one").enqueue(1)
    await place.app.drain()
    found = samples((await place.ask("/metrics")).text)
    mine = (("queue", "mail"), ("task", "send"))

    def value(name: str, *more: tuple[str, str]) -> float:
        return found[f"headrace_{name}", tuple(sorted((*mine, *more)))]

    assert value("jobs_enqueued_total") == 41
    assert value("jobs_deduplicated_total") == 1
    assert value("jobs_finished_total", ("outcome", "completed")) == 40
    assert value("jobs_finished_total", ("outcome", "dead")) == 1
    assert 33 <= value("job_duration_seconds_count") <= 41, "the last few may not have been timed"
    assert value("job_wait_seconds_count") == value("job_duration_seconds_count")
    assert found["headrace_payloads_total", (("section", "parameters"),)] == 42
    assert found["headrace_payload_bytes_total", (("form", "raw"), ("section", "parameters"))] > 42
    assert found["headrace_queue_jobs", (("queue", "mail"), ("state", "completed"))] == 40
    assert found["headrace_dlq_jobs", (("queue", "mail"),)] == 1
    assert found["headrace_backend_up", (("backend", "memory"),)] == 1
    again = samples((await place.ask("/metrics?store=no")).text)
    assert not [name for name, _ in again if name.startswith("headrace_queue")]


@pytest.mark.parametrize(
    ("url", "shard"), [("main = {0} | bulk = {1} | dual=bulk, *=main", "bulk"), ("{0} -> {1}", "second")]
)
async def test_copies_of_new_jobs_in_numbers(tmp_path: Path, url: str, shard: str) -> None:
    """Those that were written by any client of the process."""
    url = url.format(*(f"sqlite:///{tmp_path}/{name}.db" for name in ("old", "new")))
    app = App(url)

    @app.task(queue="mail")
    def send(user: str) -> None: ...

    async with app:
        if shard == "second":
            await Mover(cast(Moving, app.client._backend), seen=0).start(dual=True)
            await asyncio.sleep(FRESH)
        await app.enqueue_many([send.job("ada"), send.job("bob")])
        client = app.client.sibling()
        metrics = Metrics("sqlite", None, EventCounts(), None, None, copies=client.copies)
        found = samples((await metrics.text()).decode())
    assert found["headrace_copies_total", (("outcome", "written"), ("shard", shard))] == 2
    assert found["headrace_copies_total", (("outcome", "failed"), ("shard", shard))] == 0


def test_a_hundred_thousand_names_make_a_bounded_number_of_series() -> None:
    """X11."""
    meter, counts = Meter(ManualClock()), EventCounts()
    for number in range(100_000):
        job = Leased(b"x" * 16, f"queue-{number}", f"task-{number % 777}", {}, 1)
        meter.completed(job, 0.0)
        meter.count(job.queue, job.task, "enqueued")
        meter.upkeep.used(job.queue, 0.1)
        meter.upkeep.ran_out(job.queue, waits_again=True)
        meter.upkeep.ticked(f"schedule-{number}", "fired", 1)
    queues = [QueueStats(f"queue-{n}", available=n % 7, failed=1, oldest_due_age=n) for n in range(100_000)]
    queues.append(QueueStats(OTHER, available=10**9))
    workers = [WorkerStats(f"worker-{n % 5_000}", (f"queue-{n}",), 10, 1, 0, 0) for n in range(10_000)]
    families = [
        *Metrics("memory", meter, counts, None, None)._process(),
        *of_store(Stats(queues, workers, []), 0, "memory"),
    ]
    found = samples(expose(families).decode())
    assert len(found) <= CAP
    completed = [value for (name, _), value in found.items() if name == "headrace_jobs_finished_total"]
    assert (sum(completed), len(completed)) == (100_000, MOST + 1)
    waiting = [
        value
        for (name, labels), value in found.items()
        if name == "headrace_queue_jobs" and ("state", "failed") in labels
    ]
    assert (sum(waiting), len(waiting)) == (100_000, MOST - 1)
    assert sum(value for (name, _), value in found.items() if name == "headrace_worker_slots") == 100_000
    for name in ("lease_expired_total", "job_reclaimed_total", "cron_ticks_total", "lease_used_ratio_count"):
        counted = [value for (one, _), value in found.items() if one == f"headrace_{name}"]
        assert (sum(counted), len(counted)) == (100_000, MOST + 1), name


def test_what_is_not_timed_counts_like_its_neighbour() -> None:
    """One in eight quick jobs is timed while others wait, and all if none does."""
    meter = Meter(ManualClock())
    job = Leased(b"x" * 16, "q", "t", {}, 1)
    timed = 0
    for _ in range(8_001):
        began = 0.0
        if meter.skip:
            meter.skip -= 1
        else:
            began, timed = perf_counter(), timed + 1
        meter.completed(job, began)
    [series] = meter.series()
    assert 1_000 <= timed < 8_001
    assert series.completed == 8_001
    assert 8_001 - 8 < sum(series.ran.counts) <= 8_001
    assert sum(series.waited.counts) == sum(series.ran.counts)


def test_several_processes_add_up() -> None:
    rng, texts = Random(1), []
    for _ in range(3):
        meter = Meter(ManualClock())
        for _ in range(100):
            meter.completed(Leased(b"x" * 16, rng.choice("ab"), "t", {}, 1), 0.0)
        meter.upkeep.swept("keys", 0.1, len(texts))
        texts.append(expose(Metrics("sqlite", meter, EventCounts(), None, None)._process()).decode())
    families: dict[str, Any] = {}
    for text in texts:
        _add(families, text_string_to_metric_families(text))
    found = samples(expose(families.values()).decode())
    assert sum(value for (name, _), value in found.items() if name == "headrace_jobs_finished_total") == 300
    assert [value for (name, _), value in found.items() if name == "headrace_build_info"] == [1.0]
    instants = [value for (name, _), value in found.items() if name.endswith("_timestamp_seconds")]
    assert instants == [2.0], "the latest, and no sum"


async def test_upkeep_in_numbers(tmp_path: Path) -> None:
    """A worker dies, slots fire in time and late, sweeps run, and the vault takes what has ended."""
    clock = ManualClock(START)
    app = App(Client(MemoryBackend(), settings(vault={"url": f"file://{tmp_path}"}), clock=clock))
    meter = app.client.observers.measure(clock)

    @app.task(queue="mail", name="send", retry=immediate(1))
    async def send(user: int) -> None:
        if user == 13:
            raise ValueError("unlucky")

    async with app:
        await send.enqueue(1)
        backend = await app.client.backend()
        await backend.claim(Claim("dead", ("mail",), 1, SECOND), clock.stamp())
        await app.schedules.put(Every("1m", send.job(2), name="often", jitter=0, misfire="all"))
        clock.advance("150s")
        await app.drain()
        await app.schedules.disable("often")
        await send.enqueue(13)
        await app.drain()
        clock.advance("5m")
        numbers = StoreNumbers(app.client)
        await numbers.fresh()
        assert numbers.ended == WaitingEnds(300.0, 300.0)
        retention = Retention(backend, clock, Random(1), app.client.observers, app.client.settings.retention)
        await retention.sweep()
        await app.vault.archive()
        await send.enqueue(13)
        await app.drain()
        clock.advance("1m")
        numbers = StoreNumbers(app.client)
        await numbers.fresh()
        assert numbers.ended == WaitingEnds(360.0, 60.0)
        await app.vault.archive()
        assert await look_at_ended(backend, clock.now()) == WaitingEnds(360.0, 0.0)
    upkeep = meter.upkeep
    assert (upkeep.expired, upkeep.reclaimed) == ({"mail": 1}, {"mail": 1})
    assert upkeep.ticks["often", "late"] >= 1
    assert sum(upkeep.delays.counts) == upkeep.ticks.total() >= 2
    assert upkeep.delays.total > 119.0, "one slot was 90 s late, another 30 s"
    assert {"completed", "failed", "keys"} <= set(upkeep.swept_at)
    assert set(upkeep.swept_at.values()) == {(START + 450 * SECOND) / SECOND}
    assert sum(sum(shares.counts) for shares in upkeep.leases.values()) >= 2
    assert upkeep.requests["vault", "create"].counts
    assert upkeep.archived > 1_000


async def test_a_budget_and_shards_in_numbers(tmp_path: Path) -> None:
    two = f"main = sqlite:///{tmp_path}/a.db | bulk = sqlite:///{tmp_path}/b.db | mail=bulk, *=main"
    app = App(settings(url=two))

    @app.task(queue="mail", name="send")
    async def send() -> None: ...

    async with app, serve_http(app, HttpSettings(address="0")) as address:
        await app.enqueue_many([send.job() for _ in range(3)])
        await app.janitor.set_budget(10**9)
        found = samples((await asyncio.to_thread(ask, address, "/metrics")).text)
    assert found["headrace_shard_jobs", (("shard", "bulk"), ("state", "waiting"))] == 3
    assert {value for (name, _), value in found.items() if name == "headrace_shard_up"} == {1.0}
    assert found["headrace_budget_bytes", ()] == 10**9
    assert 0 < found["headrace_budget_used_ratio", ()] < 1


def test_windows_in_numbers_are_bounded() -> None:
    windows = [WindowState(f"queue-{n}", "open", waiting=n, pending=2, overdue=1, lag=n) for n in range(1_000)]
    text = expose(of_store(Stats([], [], []), 0, "streams", beside=Beside(windows=windows))).decode()
    found = {labels: value for (name, labels), value in samples(text).items() if name == "headrace_window_jobs"}
    assert found[("queue", "queue-999"), ("state", "waiting")] == 999, "the largest by name"
    assert sum(value for labels, value in found.items() if ("state", "pending") in labels) == 2_000
    assert len(found) == 4 * MOST


async def test_windows_come_from_the_store(tmp_path: Path) -> None:
    store = Store("streams", tmp_path)
    app = store.app()

    @app.task(queue="mail", name="send")
    async def send() -> None: ...

    async with app:
        await app.enqueue_many([send.job() for _ in range(3)])
        await app.drain()
        numbers = StoreNumbers(app.client)
        await numbers.fresh()
        assert [one.queue for one in numbers.beside.windows] == ["mail"]
    await store.close()


async def test_counts_stay_when_a_listener_leaves() -> None:
    """The feed counts while somebody listens; whoever wants metrics from then on keeps the counts."""
    observers = Observers()
    observers.start_counting(ManualClock())
    meter = observers.measure(ManualClock())
    observers.stop_counting()
    assert observers.meter is meter
    other = Observers()
    other.start_counting(ManualClock())
    other.stop_counting()
    assert other.meter is None
