"""The janitor takes back what stalled, sorts out poison, and deletes what has ended, counting each job once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headrace import Client, JobState, Pull, Settings
from headrace.backends.memory import MemoryBackend
from headrace.backends.sqlite import SqliteBackend
from headrace.core.clock import ManualClock, SystemClock
from headrace.cyclotron import Aggregate, Janitor, JobInit, Manager, Worker
from headrace.cyclotron.deletion import QUEUE
from headrace.errors import ConfigError, HeadraceError, Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Settlement, Stamp
from headrace.seam.references import is_reference
from headrace.testing.wrapped import Carry, Wrapped

HOUR = 3_600_000_000


class Ahead(Wrapped):
    """A store whose clock can be set ahead."""

    def __init__(self, inner: Backend, ahead: list[int]) -> None:
        super().__init__(inner)
        self.ahead = ahead

    def sibling(self) -> Ahead:
        return Ahead(self.inner.sibling(), self.ahead)

    async def _call(self, name: str, args: tuple[Any, ...], at: Stamp, carry: Carry[Any]) -> Any:
        now = await self.inner.now() + self.ahead[0] if at is None and self.ahead[0] else at
        return await carry(now)


@pytest.fixture
def ahead() -> list[int]:
    return [0]


def client_of(store: Backend, ahead: list[int], **failed: Any) -> Client:
    given = {"worker": {"name": "random", "poll": "200ms"}, "patience": "20s", "retention": {"failed": failed}}
    return Client(Ahead(store.sibling(), ahead), Settings.load(given, env={}, toml={}), clock=SystemClock())


def janitor_of(client: Client, **options: Any) -> Janitor:
    return Janitor(client, **{"completed": "1h", "failed": "1d", "max_touches": 2, "interval": "10ms"} | options)


async def ended(client: Client, count: int, state: str = "completed", **fields: Any) -> list[UUID]:
    """Jobs that have ended."""
    given = {"team_id": 7, "queue_name": "hog"} | fields
    ids = await Manager(client).bulk_create_jobs([JobInit(**given) for _ in range(count)])
    backend = await client.backend()
    while jobs := (await backend.claim(Claim("h", ("hog",), 1_000, HOUR))).jobs:
        await backend.finish([Settlement(job.id, job.epoch, "h", JobState(state)) for job in jobs])
    return ids


def totals(counts: list[Aggregate]) -> Counter[tuple[int | None, UUID | None, str]]:
    found: Counter[tuple[int | None, UUID | None, str]] = Counter()
    for one in counts:
        found[one.team_id, one.function_id, one.state.value] += one.count
    return found


class TestStalls:
    async def test_poison_is_sorted_out_before_stalls_are_reset(self, store: Backend, ahead: list[int]) -> None:
        async with client_of(store, ahead) as client, janitor_of(client) as janitor:
            manager = Manager(client)
            await manager.bulk_create_jobs([JobInit(team_id=1, queue_name="hog") for _ in range(4)])
            backend = await client.backend()
            for _ in range(2):
                assert len((await backend.claim(Claim("dead", ("hog",), 10, 1_000_000))).jobs) == 4
                ahead[0] += 10_000_000
                report = await janitor.run_once()
                assert (report.stalled, report.poisoned) == (4, 0)
                ahead[0] += 10_000_000
            assert {job.janitor_touch_count for job in await manager.list_jobs(team_id=1)} == {2}
            assert len((await backend.claim(Claim("dead", ("hog",), 3, 1_000_000))).jobs) == 3
            ahead[0] += 10_000_000
            report = await janitor.run_once()
            assert (report.stalled, report.poisoned) == (0, 3)
            dead = await manager.list_jobs(state="failed")
            assert {(job.queue_name, job.reason) for job in dead} == {("hog", "lost")}
            assert await manager.replay_job(dead[0].id) is JobState.AVAILABLE
            assert (await manager.get_job(dead[0].id)).janitor_touch_count == 0

    async def test_a_release_forgives_stalls(self, store: Backend, ahead: list[int]) -> None:
        """Only stalls in a row count."""
        async with client_of(store, ahead) as client, janitor_of(client, max_touches=1) as janitor:
            await Manager(client).create_job(JobInit(team_id=1, queue_name="hog"))
            backend = await client.backend()
            for _ in range(3):
                assert (await backend.claim(Claim("dead", ("hog",), 1, 1_000_000))).jobs
                ahead[0] += 10_000_000
                assert (await janitor.run_once()).stalled == 1
                ahead[0] += 10_000_000
                async with Worker(client, "hog") as worker:
                    [job] = await worker.dequeue_jobs()
                    assert job.janitor_touch_count == 1
                    job.set_state("available")
                    await job.release()

    async def test_a_living_worker_keeps_its_jobs(self, store: Backend, ahead: list[int]) -> None:
        async with client_of(store, ahead) as client, janitor_of(client) as janitor:
            await Manager(client).create_job(JobInit(team_id=1, queue_name="hog"))
            async with Worker(client, "hog") as worker:
                [job] = await worker.dequeue_jobs()
                assert (await janitor.run_once()).stalled == 0
                job.set_state("completed")
                assert await job.release() is JobState.COMPLETED


class TestResumes:
    async def test_one_that_comes_while_the_job_runs_is_kept_until_it_pauses(
        self, store: Backend, ahead: list[int]
    ) -> None:
        async with client_of(store, ahead) as client, janitor_of(client) as janitor, Worker(client, "hog") as worker:
            manager = Manager(client)
            job_id = await manager.create_job(JobInit(team_id=1, queue_name="hog"))
            [job] = await worker.dequeue_jobs()
            for _ in range(3):
                assert await manager.resume_job(job_id) is JobState.RUNNING
            assert (await janitor.run_once()).resumed == 0
            job.set_state("paused")
            await job.release()
            async with asyncio.timeout(60):
                while not (report := await janitor.run_once()).resumed:
                    await asyncio.sleep(0.01)
            assert report.resumed == 1
            assert (await manager.get_job(job_id)).state == "available"
            await manager.pause_job(job_id)
            assert (await janitor.run_once()).resumed == 0, "it counts once"


class TestDeletion:
    async def test_by_age_and_state_with_counts(self, store: Backend, ahead: list[int]) -> None:
        function = UUID(int=3)
        async with client_of(store, ahead) as client, janitor_of(client, batch=7) as janitor:
            manager = Manager(client)
            await ended(client, 20, team_id=1)
            await ended(client, 5, team_id=2, function_id=function)
            await ended(client, 3, "failed", team_id=1)
            waiting = await manager.create_job(JobInit(team_id=1, queue_name="hog"))
            assert (await janitor.run_once()).deleted == 0
            ahead[0] = HOUR + 60_000_000
            report = await janitor.run_once()
            assert report.deleted == 25
            assert totals(report.aggregates) == {(1, None, "completed"): 20, (2, function, "completed"): 5}
            ahead[0] = 25 * HOUR
            assert (await janitor.run_once()).deleted == 3
            expected = {(1, None, "completed"): 20, (2, function, "completed"): 5, (1, None, "failed"): 3}
            assert totals(await janitor.aggregates()) == expected
            assert [job.id for job in await manager.list_jobs(queue_name="hog")] == [waiting]
            assert {one.hour.minute for one in await janitor.aggregates()} == {0}

    async def test_counts_are_jobs_that_can_be_consumed(self, store: Backend, ahead: list[int]) -> None:
        async with client_of(store, ahead) as client, janitor_of(client) as janitor:
            await ended(client, 9)
            ahead[0] = 2 * HOUR
            await janitor.run_once()
            async with Worker(client, "_cyclotron_aggregates") as worker:
                [job] = await worker.dequeue_jobs()
                assert job.parameters is not None
                assert b'"count":9' in job.parameters
                job.set_state("completed")
                await job.release()
            assert await janitor.aggregates() == []
            assert await Manager(client).depths() == {0: 0}

    async def test_a_job_that_was_replayed_meanwhile_stays(self, store: Backend, ahead: list[int]) -> None:
        """It is on the list of a janitor that died before it deleted it."""
        async with client_of(store, ahead) as client:
            first, second = await ended(client, 2, "failed")
            ahead[0] = 48 * HOUR
            dying = janitor_of(client)
            dying._deletion._delete = _dies  # type: ignore[method-assign]
            with pytest.raises(Unavailable):
                async with dying:
                    await dying.run_once()
            manager = Manager(client)
            await manager.replay_job(first)
            async with janitor_of(client) as janitor:
                assert (await janitor.run_once()).deleted == 1
                assert [job.id for job in await manager.list_jobs(queue_name="hog")] == [first]
                assert totals(await janitor.aggregates()) == {(7, None, "failed"): 2}
            assert second != first

    async def test_queues_that_are_empty_now_are_told_with_zero(self, store: Backend, ahead: list[int]) -> None:
        async with client_of(store, ahead) as client, janitor_of(client) as janitor:
            await Manager(client).create_job(JobInit(team_id=1, queue_name="hog"))
            assert (await janitor.run_once()).depths == {"hog": 1}
            async with Worker(client, "hog") as worker:
                [job] = await worker.dequeue_jobs()
                job.set_state("completed")
                await job.release()
            ahead[0] = 2 * HOUR
            await janitor.run_once()
            assert (await janitor.run_once()).depths == {"hog": 0}

    async def test_works_through_a_backlog_until_its_time_is_over(self, store: Backend, ahead: list[int]) -> None:
        async with client_of(store, ahead) as client, janitor_of(client, batch=10, budget=0) as janitor:
            await ended(client, 35)
            ahead[0] = 2 * HOUR
            assert (await janitor.run_once()).deleted == 0
            janitor._budget = 3_600.0
            assert (await janitor.run_once()).deleted == 35

    def test_retention_leaves_time_for_inserts_that_are_repeated(self) -> None:
        with pytest.raises(ConfigError, match="patience"):
            Janitor("memory://", completed="10s", patience="30s")


async def _dies(listed: Any) -> int:
    if listed:
        raise Unavailable("dead")
    return 0


class Dying(Ahead):
    """Ends after so many calls, before or after it has carried out the last one."""

    calls = 0
    dies_at = 10**9
    after = False

    def __init__(self, inner: Backend, ahead: list[int]) -> None:
        super().__init__(inner, ahead)
        self.dead = asyncio.Event()

    async def _call(self, name: str, args: tuple[Any, ...], at: Stamp, carry: Carry[Any]) -> Any:
        if name in ("renew", "now"):
            return await super()._call(name, args, at, carry)
        self.calls += 1
        if self.calls == self.dies_at and self.after:
            await super()._call(name, args, at, carry)
        if self.calls >= self.dies_at:
            self.dead.set()
            raise Unavailable("dead")
        return await super()._call(name, args, at, carry)


class TestDeadLetters:
    """They keep to the bounds of ``retention.failed``, whatever their age."""

    @pytest.mark.parametrize("bound", [{"count": 20}, {"bytes": 100_000}])
    async def test_stay_within_count_and_bytes_and_what_goes_is_counted(
        self, store: Backend, ahead: list[int], bound: dict[str, int]
    ) -> None:
        async with client_of(store, ahead, **bound) as client, janitor_of(client) as janitor:
            blob = random.Random(1).randbytes(10_000)
            ids = await ended(client, 50, "failed", blob=blob if "bytes" in bound else None)
            report = await janitor.run_once()
            left = await Manager(client).list_jobs(state="failed", limit=100)
            assert 5 <= len(left) <= 20
            assert {job.id for job in left} <= set(ids)
            assert (report.surplus, report.deleted) == (50 - len(left), 0)
            assert totals(await janitor.aggregates()) == {(7, None, "failed"): 50 - len(left)}
            assert (await janitor.run_once()).surplus == 0
            ahead[0] = 25 * HOUR
            assert (await janitor.run_once()).deleted == len(left)
            assert totals(await janitor.aggregates()) == {(7, None, "failed"): 50}

    async def test_poison_pills_too(self, store: Backend, ahead: list[int]) -> None:
        async with client_of(store, ahead, count=3) as client, janitor_of(client, max_touches=0) as janitor:
            await Manager(client).bulk_create_jobs([JobInit(team_id=1, queue_name="hog") for _ in range(10)])
            backend = await client.backend()
            assert len((await backend.claim(Claim("dead", ("hog",), 10, 1_000_000))).jobs) == 10
            ahead[0] += 10_000_000
            report = await janitor.run_once()
            assert (report.poisoned, report.surplus) == (10, 7)
            assert len(await Manager(client).list_jobs(state="failed")) == 3

    async def test_completed_jobs_stay_for_their_time_however_many(self, store: Backend, ahead: list[int]) -> None:
        given = {"worker": {"name": "random"}, "patience": "20s", "retention": {"completed": {"count": 5}}}
        client = Client(Ahead(store.sibling(), ahead), Settings.load(given, env={}, toml={}))
        async with client, janitor_of(client) as janitor:
            await ended(client, 20)
            ahead[0] = HOUR // 2
            assert (await janitor.run_once()).surplus == 0
            assert len(await Manager(client).list_jobs(queue_name="hog")) == 20


class TestCrashes:
    @pytest.mark.parametrize("kind", ["memory", "sqlite"])
    @pytest.mark.parametrize("after", [False, True])
    async def test_at_any_call_neither_lose_nor_double_a_count(self, tmp_path: Path, kind: str, after: bool) -> None:
        """The janitor dies at its n-th call, and another one does the rest."""
        settings = Settings.load({"patience": "20s", "worker": {"lease": "1s", "grace": 0}}, env={}, toml={})
        survived, dies_at = False, 0
        while not survived:
            dies_at += 1
            ahead = [0]
            store: Backend = MemoryBackend() if kind == "memory" else SqliteBackend(tmp_path / f"{dies_at}.db")
            async with Client(Ahead(store, ahead), settings) as client:
                await ended(client, 25)
                ahead[0] = 2 * HOUR
                dying = Dying(store.sibling(), ahead)
                dying.dies_at, dying.after = dies_at, after
                janitor = janitor_of(Client(dying, settings), batch=10)
                survived = await _until_dead(janitor, dying)
                await _kill(janitor._pull)
                await _kill(janitor._resumes._pull)
                async with janitor_of(client, batch=10) as heir:
                    for _ in range(2):
                        ahead[0] += 60_000_000
                        await heir.run_once()
                    assert totals(await heir.aggregates()) == {(7, None, "completed"): 25}, dies_at
                    assert await Manager(client).list_jobs(queue_name="hog") == []
        assert dies_at > 15

    async def test_two_at_once_count_each_job_once(self, store: Backend, ahead: list[int]) -> None:
        async with client_of(store, ahead) as one, client_of(store, ahead) as other:
            await ended(one, 200)
            ahead[0] = 2 * HOUR
            async with janitor_of(one, batch=10) as first, janitor_of(other, batch=10) as second:
                for _ in range(3):
                    await asyncio.gather(first.run_once(), second.run_once())
                assert totals(await first.aggregates()) == {(7, None, "completed"): 200}
                assert await Manager(one).list_jobs(queue_name="hog") == []

    async def test_rounds_never_overlap(self, store: Backend, ahead: list[int]) -> None:
        async with client_of(store, ahead) as client, janitor_of(client) as janitor:
            await ended(client, 50)
            ahead[0] = 2 * HOUR
            reports = await asyncio.gather(*(janitor.run_once() for _ in range(5)))
            assert [report.skipped for report in reports] == [False, True, True, True, True]
            assert reports[0].deleted == 50

    async def test_runs_for_ever_whatever_happens(self, store: Backend, ahead: list[int]) -> None:
        async with client_of(store, ahead) as client, janitor_of(client) as janitor:
            rounds = 0
            take_back = janitor._take_back

            async def stumbles(request: Any) -> tuple[int, int]:
                nonlocal rounds
                rounds += 1
                if rounds in (1, 2):
                    raise Unavailable("not now") if rounds == 1 else HeadraceError("a surprise")
                return await take_back(request)

            janitor._take_back = stumbles  # type: ignore[method-assign]
            await ended(client, 4)
            ahead[0] = 2 * HOUR
            running = asyncio.ensure_future(janitor.run())
            async with asyncio.timeout(60):
                while await Manager(client).list_jobs(queue_name="hog"):
                    await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.wait([running])

    async def test_a_broom_that_died_too_often_is_put_back(self, store: Backend, ahead: list[int]) -> None:
        async with client_of(store, ahead) as client:
            async with janitor_of(client) as janitor:
                await janitor.run_once()
            backend = await client.backend()
            [broom] = (await backend.claim(Claim("h", (QUEUE,), 1, HOUR))).jobs
            await backend.finish([Settlement(broom.id, broom.epoch, "h", JobState.FAILED)])
            await ended(client, 3)
            ahead[0] = 2 * HOUR
            async with janitor_of(client) as janitor:
                assert (await janitor.run_once()).deleted == 3


async def _until_dead(janitor: Janitor, dying: Dying) -> bool:
    """A round of a janitor; whether it came to its end."""
    running, died = asyncio.ensure_future(janitor.run_once()), asyncio.ensure_future(dying.dead.wait())
    await asyncio.wait([running, died], return_when=asyncio.FIRST_COMPLETED)
    survived = not dying.dead.is_set()
    dying.dies_at = 0
    for task in (running, died):
        task.cancel()
    await asyncio.wait([running, died])
    return survived


async def _kill(pull: Pull) -> None:
    """End it as if its process had died."""
    if pull._run is not None:
        pull._run.cancel()
        await asyncio.wait([pull._run])


async def test_objects_are_looked_after(store: Backend, tmp_path: Path) -> None:
    """Where there are no other workers than those of this package."""
    clock = ManualClock(SystemClock().now())
    objects = {"url": f"file://{tmp_path}/objects", "blob": {"over": 0}, "vm_state": {"over": None}}
    given = {"worker": {"name": "random"}, "patience": "20s", "objects": objects}
    async with (
        Client(store.sibling(), Settings.load(given, env={}, toml={}), clock=clock) as client,
        janitor_of(client, max_touches=0) as janitor,
    ):
        sections = {"vm_state": random.randbytes(3_000), "blob": random.randbytes(3_000)}
        job_id = await Manager(client).create_job(JobInit(team_id=7, queue_name="hog", **sections))
        [first] = (tmp_path / "objects").rglob("segments/*/*/*")
        backend = await client.backend()
        assert (await backend.claim(Claim("dead", ("hog",), 1, 1), clock.stamp())).jobs
        clock.advance("1h")
        assert (await janitor.run_once()).poisoned == 1
        clock.advance("11m")
        await janitor.run_once()
        [record] = await backend.fetch([job_id.bytes], frozenset(sections), clock.stamp())
        assert record is not None
        assert all(map(is_reference, record.cells.values()))
        assert (await Manager(client).get_job(job_id)).vm_state == sections["vm_state"]
        clock.advance("2d")
        await janitor.run_once()
        clock.advance("2h")
        await janitor.run_once()
        assert not first.exists()
        assert [*(tmp_path / "objects").rglob("segments/*/*/*")] == []
