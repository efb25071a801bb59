"""Systems on PostgreSQL: a server of the harness's own, fresh databases, and figures that mean what they say."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from benchmarks import profile
from benchmarks.fleet import Servers
from benchmarks.machine import Cores
from benchmarks.metrics.crowd import Crowd
from benchmarks.metrics.deep import Deep
from benchmarks.metrics.drain import Drain
from benchmarks.metrics.held import Held
from benchmarks.metrics.journal import Journal
from benchmarks.metrics.metric import Bench
from benchmarks.metrics.pair import Pair
from benchmarks.metrics.served import Served
from benchmarks.sizes import Sizes
from benchmarks.stage import ActorFailed, Stage
from benchmarks.systems import SYSTEMS
from benchmarks.systems.headrace import QUEUE

from headrace.backends.postgres import PostgresBackend
from headrace.seam.records import Cancel, Row, Selector

OURS = SYSTEMS["headrace-postgres"]
SIZES = Sizes(
    repeats=1,
    drain=200,
    counted=200,
    journal=60,
    claims=5,
    deep=700,
    backlog=200,
    baseline=0.8,
    held=2.4,
    crowd=3,
    rounds=1,
    limit=60.0,
)


@pytest.fixture
def bench(servers: Servers, tmp_path: Path) -> Bench:
    return Bench(SIZES, Cores(None, None), tmp_path, servers)


def test_every_measurement_has_databases_of_its_own_which_go_with_it(bench: Bench) -> None:
    def databases() -> set[str]:
        return {name for [name] in bench.postgres().ask("SELECT datname FROM pg_database WHERE NOT datistemplate")}

    with bench.stage(OURS) as stage:
        assert stage.database in databases()
        first, url = stage.database, (stage.folder / "queue.url").read_text()
        assert url.endswith(f"/{first}")
    with bench.stage(OURS) as stage:
        assert stage.database != first
    assert databases() == {"postgres"}


def test_a_server_that_works_counts_as_ours(bench: Bench, servers: Servers) -> None:
    before = servers.cpu()
    bench.postgres().ask("SELECT count(*) FROM generate_series(1, 3000000)")
    assert servers.cpu() > before


@pytest.mark.parametrize("name", ["headrace-postgres", "bare-postgres", "minimal-postgres"])
def test_a_drain_ends_when_the_server_holds_nothing(bench: Bench, name: str) -> None:
    found = Drain().run(bench, SYSTEMS[name])
    assert found["drain"] > 0
    assert found["drain_cpu"] > 0
    assert found["drain_server_cpu"] >= 0
    assert "drain_written" not in found


@asynccontextmanager
async def opened(stage: Stage) -> AsyncIterator[PostgresBackend]:
    store = PostgresBackend((stage.folder / "queue.url").read_text(), listen=False)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def test_a_drain_of_nothing_is_a_failure(bench: Bench) -> None:
    with bench.stage(OURS) as stage:
        async with opened(stage):
            with pytest.raises(ActorFailed, match="nothing to drain"):
                stage.play(bench.python(OURS), OURS.name, "watch", goal=0)


async def test_a_drain_whose_jobs_do_not_complete_is_a_failure(bench: Bench) -> None:
    with bench.stage(OURS) as stage:
        async with opened(stage) as store:
            await store.insert([Row(id=bytes([n] * 16), queue=QUEUE, task="noop", cells={}) for n in range(3)])
            watch = stage.start(bench.python(OURS), OURS.name, "watch", goal=0)
            watch.ready()
            watch.go()
            await store.alter(Selector(queue=QUEUE), Cancel())
        with pytest.raises(ActorFailed, match="0 jobs are left, 3 failed or were cancelled"):
            watch.result()


def test_the_server_counts_what_a_job_asks_of_it(bench: Bench) -> None:
    found = Served().run(bench, OURS)
    assert 0 < found["statements"] < 1
    assert 0 < found["commits"] < 1
    assert found["log_bytes"] > 200


def test_the_log_is_counted_by_part_and_against_a_yardstick(bench: Bench) -> None:
    ours, legacy = Journal().run(bench, OURS), Journal().run(bench, SYSTEMS["legacy-postgres"])
    for found, name in ((ours, "wal_random"), (legacy, "wal_random"), (ours, "wal_json"), (legacy, "wal_json")):
        parts = [found[f"{name}_{part}"] for part in ("insert", "work", "delete")]
        assert found[name] == pytest.approx(sum(parts))
        assert min(parts) > 0
    assert ours["wal_random_beyond"] == pytest.approx(ours["wal_random"] - 4_575 - 270)
    assert ours["wal_bare"] < ours["wal_small"]
    assert ours["wal_json_insert"] < ours["wal_random_insert"]
    assert legacy["wal_random"] == pytest.approx(9_800, rel=0.1)
    assert "wal_bare" not in legacy


def test_depth_is_measured_by_drains_and_by_claims(bench: Bench) -> None:
    found = Deep().run(bench, OURS)
    assert found["depth_ratio"] == pytest.approx(found["depth_deep"] / found["depth_shallow"])
    assert found["claim_p99_deep"] >= found["claim_p50_deep"] > 0


def test_a_snapshot_is_held_under_load(bench: Bench) -> None:
    found = Held().run(bench, OURS)
    assert found["held_ratio"] == pytest.approx(found["held_after"] / found["held_before"])


def test_each_step_of_a_crowd_is_timed(bench: Bench) -> None:
    found = Crowd().run(bench, OURS)
    assert len(found) == 8
    assert min(found.values()) > 0


def test_two_workers_drain_one_queue(bench: Bench) -> None:
    assert Pair().drain(bench, OURS, 2) > 0


def test_a_profile_shows_the_server_too(bench: Bench, tmp_path: Path) -> None:
    text = profile.write(bench, [OURS.name], tmp_path / "profile.txt")
    assert "headrace/worker/runner.py" in text
    assert "function on the server" in text
    assert "headrace" in text.split("function on the server")[1]
