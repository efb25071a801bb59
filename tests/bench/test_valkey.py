"""Systems on Valkey: a fresh server for every measurement, and figures that mean what they say."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis
from benchmarks import profile
from benchmarks.fleet import Servers
from benchmarks.machine import Cores
from benchmarks.metrics.appended import Appended
from benchmarks.metrics.asked import Asked
from benchmarks.metrics.bulk import Bulk
from benchmarks.metrics.deep import Deep
from benchmarks.metrics.drain import Drain
from benchmarks.metrics.enqueue import Enqueue
from benchmarks.metrics.metric import Bench
from benchmarks.metrics.pair import Pair
from benchmarks.metrics.pickup import Pickup
from benchmarks.metrics.reply import Reply
from benchmarks.metrics.residence import Residence
from benchmarks.monitor import Monitor
from benchmarks.server import ServerFailed
from benchmarks.sizes import Sizes
from benchmarks.stage import ActorFailed, Stage
from benchmarks.systems import SYSTEMS
from benchmarks.systems.headrace import QUEUE

from headrace.api.connection import open_backend
from headrace.seam.protocol import Backend
from headrace.seam.records import Cancel, Row, Selector

OURS = SYSTEMS["headrace-valkey"]
SIZES = Sizes(
    repeats=1,
    enqueue=50,
    bulk=500,
    drain=200,
    counted=400,
    samples=20,
    journal=60,
    claims=5,
    deep=700,
    resident=2_000,
    limit=60.0,
)


@pytest.fixture
def bench(servers: Servers, tmp_path: Path) -> Bench:
    return Bench(SIZES, Cores(None, None), tmp_path, servers)


def test_every_measurement_has_a_server_of_its_own_which_goes_with_it(bench: Bench) -> None:
    with bench.stage(OURS) as stage, bench.stage(OURS) as other:
        assert other.database != stage.database
        assert (stage.folder / "queue.url").read_text() == stage.database
        assert (stage.folder / "warm.url").read_text() == stage.database.removesuffix("0") + "1"
        with bench.valkey().connect(stage.database) as client:
            assert client.config_get("append*")["appendfsync"] == "everysec"
            client.set("mark", 1)
        with bench.valkey().connect(other.database) as client:
            assert client.dbsize() == 0
    with pytest.raises(redis.ConnectionError):
        bench.valkey().info(stage.database, "server")


def test_how_durable_it_is_is_said_and_done(tmp_path: Path) -> None:
    for aof, kept in (("everysec", "yes"), ("always", "yes"), ("off", "no")):
        with Servers(tmp_path, None, aof) as servers:  # type: ignore[arg-type]
            valkey = servers.valkey()
            with valkey.databases(tmp_path) as url, valkey.connect(url) as client:
                assert client.config_get("appendonly") == {"appendonly": kept}
            assert f"appendonly {kept}" in servers.told("valkey")


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with (
        Servers(tmp_path / "nowhere", None) as servers,
        pytest.raises(ServerFailed, match=r"Valkey did not start in .*nowhere"),
        servers.valkey().databases(tmp_path),
    ):
        pass


def test_a_server_that_works_counts_as_ours(bench: Bench, servers: Servers) -> None:
    with bench.stage(OURS) as stage, bench.valkey().connect(stage.database) as client:
        before = servers.cpu()
        client.eval("for i = 1, 50000000 do end", 0)
        assert servers.cpu() > before


@pytest.mark.parametrize("name", ["headrace-valkey", "minimal-valkey"])
def test_a_drain_ends_when_the_server_holds_nothing(bench: Bench, name: str) -> None:
    found = Drain().run(bench, SYSTEMS[name])
    assert found["drain"] > 0
    assert found["drain_cpu"] > 0
    assert found["drain_server_cpu"] >= 0
    assert "drain_written" not in found


@pytest.mark.parametrize("name", ["headrace-valkey", "bare-valkey", "bare-valkey-variadic"])
def test_jobs_are_enqueued_by_ones_and_by_many(bench: Bench, name: str) -> None:
    system = SYSTEMS[name]
    assert Bulk().run(bench, system)["bulk"] > 0
    if Enqueue().applies(system):
        assert Enqueue().run(bench, system)["enqueue"] > 0


@asynccontextmanager
async def opened(stage: Stage) -> AsyncIterator[Backend]:
    store = open_backend((stage.folder / "queue.url").read_text())
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


def test_what_clients_send_is_told_apart_from_what_scripts_do(bench: Bench) -> None:
    with (
        bench.stage(OURS) as stage,
        bench.valkey().connect(stage.database) as ours,
        bench.valkey().connect(stage.database) as other,
    ):
        other.ping()
        with Monitor(stage.database, ours) as seen:
            ours.ping()
            other.eval("for i = 1, 5 do redis.call('INCR', 'n') end", 0)
            other.ping()
    assert (seen.sent, seen.inside) == (2, 5)


def test_the_server_counts_what_a_job_asks_of_it(bench: Bench) -> None:
    found = Asked().run(bench, OURS)
    assert 0 < found["statements"] < 0.2
    assert 0 < found["packets"] < 0.3
    assert found["commands_inside"] > found["statements"]
    assert found["log_bytes"] > 100


def test_the_log_is_counted_by_part(bench: Bench) -> None:
    found = Appended().run(bench, OURS)
    for name in ("aof_small", "aof_random", "aof_json"):
        parts = [found[f"{name}_{part}"] for part in ("insert", "work", "delete")]
        assert found[name] == pytest.approx(sum(parts))
        assert min(parts) > 0
    assert found["aof_random_beyond"] == pytest.approx(found["aof_random"] - 4_575 - 270)
    assert found["aof_bare"] < found["aof_small"]
    assert found["aof_json_insert"] < found["aof_random_insert"]


def test_memory_is_taken_up_and_given_back(bench: Bench) -> None:
    found = Residence().run(bench, OURS)
    assert found["resident_queued"] > 200
    assert found["resident_finished"] > 200
    assert found["resident_ratio"] == pytest.approx(found["resident_after"] / found["resident_base"])
    assert found["resident_ratio"] < 1.05


def test_depth_is_measured_by_drains_and_by_claims(bench: Bench) -> None:
    found = Deep().run(bench, OURS)
    assert found["depth_ratio"] == pytest.approx(found["depth_deep"] / found["depth_shallow"])
    assert found["claim_p99_deep"] >= found["claim_p50_deep"] > 0


@pytest.mark.parametrize("name", ["headrace-valkey", "minimal-valkey"])
def test_an_idle_worker_picks_up_every_job(bench: Bench, name: str) -> None:
    found = Pickup().run(bench, SYSTEMS[name])
    assert found["pickup_p99"] >= found["pickup_p50"] > 0


def test_a_caller_gets_its_replies(bench: Bench) -> None:
    assert Reply().run(bench, OURS)["reply_p50"] > 0


def test_two_workers_drain_one_queue(bench: Bench) -> None:
    assert Pair().drain(bench, OURS, 2) > 0


def test_a_profile_shows_the_server_too(bench: Bench, tmp_path: Path) -> None:
    text = profile.write(bench, [OURS.name], tmp_path / "profile.txt")
    assert "headrace/worker/runner.py" in text
    assert "evalsha" in text.split("command on the server")[1]
