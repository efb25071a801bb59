"""Children answer, are bounded in time, and leave nothing behind."""

import sys
from pathlib import Path

import pytest
from benchmarks.machine import Cores
from benchmarks.metrics.footprint import Footprint
from benchmarks.metrics.metric import Bench
from benchmarks.sizes import Sizes
from benchmarks.stage import ActorFailed, Stage
from benchmarks.systems import SYSTEMS
from benchmarks.systems.headrace import QUEUE

from headrace.backends.sqlite import SqliteBackend
from headrace.seam.records import Cancel, Selector


def test_a_child_plays_its_role_and_its_directory_goes(tmp_path: Path) -> None:
    with Stage(tmp_path, 60) as stage:
        answer = stage.play(sys.executable, "headrace-memory", "solo", count=200, filled=False)
        assert stage.folder.exists()
    assert sum(answer["trips"].values()) >= 1
    assert sum(answer["claims"]) == 200
    assert answer["seconds"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_fails_says_why(tmp_path: Path) -> None:
    with Stage(tmp_path, 60) as stage, pytest.raises(ActorFailed, match=r"headrace-memory url: .*Error"):
        stage.play(sys.executable, "headrace-memory", "url", nonsense=True)


def test_a_child_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    with Stage(tmp_path, 0.05) as stage, pytest.raises(ActorFailed, match="took too long"):
        stage.play(sys.executable, "headrace-memory", "enqueue", count=10)


def test_leaving_the_stage_ends_a_child_that_still_runs(tmp_path: Path) -> None:
    with Stage(tmp_path, 60) as stage:
        actor = stage.start(sys.executable, "headrace-memory", "enqueue", count=10)
        actor.ready()
    assert actor.ended


def test_a_drain_of_nothing_is_a_failure(tmp_path: Path) -> None:
    with Stage(tmp_path, 60) as stage, pytest.raises(ActorFailed, match="nothing to drain"):
        stage.play(sys.executable, "headrace-sqlite-normal", "watch", goal=0)


async def test_a_drain_whose_jobs_do_not_complete_is_a_failure(tmp_path: Path) -> None:
    with Stage(tmp_path, 60) as stage:
        stage.play(sys.executable, "headrace-sqlite-normal", "fill", count=3)
        watch = stage.start(sys.executable, "headrace-sqlite-normal", "watch", goal=0)
        watch.ready()
        watch.go()
        store = SqliteBackend(stage.folder / "queue.db")
        await store.open()
        await store.alter(Selector(queue=QUEUE), Cancel())
        await store.close()
        with pytest.raises(ActorFailed, match="3 jobs failed or were cancelled"):
            watch.result()


def test_a_worker_is_weighed_with_all_that_it_prefetches(tmp_path: Path) -> None:
    sizes = Sizes(slots=50, wide=500, limit=60)
    found = Footprint().run(Bench(sizes, Cores(None, None), tmp_path), SYSTEMS["headrace-sqlite-normal"])
    assert found["memory_prefetched"] == 500
    assert found["memory_peak"] >= found["memory_resident"] > 0
