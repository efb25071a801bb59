"""Jobs are created one by one and in bulk, on one shard and on several, within their depth."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import pytest

from headrace import App, Client, JobState, Settings, connect
from headrace.backends.memory import MemoryBackend
from headrace.cyclotron import JobInit, Manager, Worker
from headrace.cyclotron.shard import Shard
from headrace.errors import ConfigError, HeadraceError, InvalidJob, JobNotFound, PayloadTooLarge, QueueFull, Unavailable
from headrace.seam.records import Inserted, Row, Selector, Stamp
from tests.cyclotron.conftest import MakeClient
from tests.worker.stores import Plain

FUNCTION = UUID(int=77)


def init(number: int = 0, **fields: Any) -> JobInit:
    return JobInit(**{"team_id": 7, "queue_name": "hog", "id": UUID(int=number + 1)} | fields)


def plain(count: int) -> list[JobInit]:
    return [init(number) for number in range(count)]


class TestCreate:
    async def test_every_field_is_kept(self, client: Client) -> None:
        later = datetime.now(UTC) + timedelta(hours=1)
        manager = Manager(client)
        sections = {"vm_state": b"v", "parameters": b"p", "metadata": b"m", "blob": b"\x00b"}
        job_id = await manager.create_job(
            JobInit(
                team_id=2**40, function_id=FUNCTION, queue_name="hog", priority=-3, scheduled=later, source="kafka",
                **sections,
            )
        )  # fmt: skip
        stored = await manager.get_job(job_id)
        assert (stored.id, stored.team_id, stored.function_id, stored.queue_name) == (job_id, 2**40, FUNCTION, "hog")
        assert (stored.state, stored.priority, stored.source) == ("available", -3, "kafka")
        assert abs(stored.scheduled - later) < timedelta(milliseconds=1)
        assert {name: getattr(stored, name) for name in sections} == sections
        assert (stored.transition_count, stored.janitor_touch_count) == (0, 0)
        assert stored.last_transition == stored.created

    async def test_an_empty_section_is_not_an_absent_one(self, client: Client) -> None:
        stored = await Manager(client).get_job(await Manager(client).create_job(init(blob=b"")))
        assert (stored.blob, stored.vm_state) == (b"", None)

    async def test_an_id_is_kept_or_made_and_creating_again_stores_nothing_twice(self, client: Client) -> None:
        manager = Manager(client)
        given, made = init(5), JobInit(team_id=1, queue_name="hog")
        assert (await manager.create_job(given), given.id) == (UUID(int=6), UUID(int=6))
        first = await manager.create_job(made)
        assert first.version == 7
        assert await manager.create_job(made) == first
        assert len(await manager.list_jobs()) == 2

    async def test_jobs_are_found_by_team_function_queue_and_state(self, client: Client) -> None:
        manager = Manager(client)
        await manager.bulk_create_jobs(
            [init(0, team_id=1), init(1, team_id=2, function_id=FUNCTION), init(2, team_id=2, queue_name="other")]
        )
        await manager.pause_job(UUID(int=3))

        async def ids(**wanted: Any) -> set[int]:
            return {job.id.int for job in await manager.list_jobs(**wanted)}

        assert await ids() == {1, 2, 3}
        assert await ids(team_id=2) == {2, 3}
        assert await ids(function_id=FUNCTION) == {2}
        assert await ids(queue_name="other") == {3}
        assert await ids(state="paused") == {3}
        assert await manager.resume_job(UUID(int=3)) is JobState.AVAILABLE
        with pytest.raises(JobNotFound):
            await manager.pause_job(UUID(int=99))
        with pytest.raises(InvalidJob, match="state"):
            await manager.list_jobs(state="cancelled")

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("team_id", None), ("team_id", "7"), ("team_id", True), ("team_id", 2**70), ("queue_name", ""),
            ("queue_name", None), ("function_id", "not a uuid"), ("id", "x"), ("priority", 99_999),
            ("scheduled", datetime(2030, 1, 1)), ("blob", "text"), ("source", ""),
        ],
    )  # fmt: skip
    async def test_bad_fields_are_refused_before_anything_is_stored(
        self, client: Client, field: str, value: Any
    ) -> None:
        manager = Manager(client, chunk_size=1)
        with pytest.raises((InvalidJob, ConfigError), match=field):
            await manager.bulk_create_jobs([init(0), init(1, **{field: value})])
        assert await manager.list_jobs() == []

    async def test_a_section_that_is_too_large_is_refused_before_anything_is_stored(self, client: Client) -> None:
        manager = Manager(client, chunk_size=1)
        with pytest.raises(PayloadTooLarge):
            await manager.bulk_create_jobs([init(0), init(1, vm_state=bytes(17 * 1024 * 1024))])
        assert await manager.list_jobs() == []


class Noted(Plain):
    """Notes how many rows each insert has, and how many were under way at most."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.sizes: list[int] = []
        self.firsts: list[int] = []
        self.under_way = self.most = 0
        self.fails: set[bytes] = set()
        self.unanswered = False

    async def insert(self, rows: Sequence[Row], at: Stamp = None) -> list[Inserted]:
        self.sizes.append(len(rows))
        self.firsts.append(UUID(bytes=rows[0].id).int)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(0)
            if self.away or any(row.id in self.fails for row in rows):
                raise Unavailable("not now")
            answers = await self.inner.insert(rows, at)
            if self.unanswered:
                raise Unavailable("the answer is lost")
            return answers
        finally:
            self.under_way -= 1


def on(backend: Any, **settings: Any) -> Client:
    return Client(backend, Settings.load({"patience": 0} | settings, env={}, toml={}))


class TestChunks:
    @pytest.mark.parametrize("parallel", [False, True])
    async def test_are_transactions_of_their_own(self, parallel: bool) -> None:
        store = Noted(MemoryBackend())
        async with on(store) as client:
            ids = await Manager(client, chunk_size=100, parallel=parallel).bulk_create_jobs(plain(950))
            assert [job_id.int for job_id in ids] == list(range(1, 951))
            assert sorted(store.sizes) == [50] + [100] * 9
            assert (store.most > 1) is parallel

    async def test_if_one_fails_the_same_call_does_the_rest(self) -> None:
        store = Noted(MemoryBackend())
        store.fails = {UUID(int=35).bytes}
        async with on(store) as client:
            manager, jobs = Manager(client, chunk_size=10, parallel=True), plain(100)
            with pytest.raises(Unavailable):
                await manager.bulk_create_jobs(jobs)
            assert len(await manager.list_jobs(limit=1_000)) == 90
            store.fails.clear()
            manager = Manager(client, chunk_size=10)
            assert len(await manager.bulk_create_jobs(jobs)) == 100
            assert len(await manager.list_jobs(limit=1_000)) == 100

    @pytest.mark.parametrize("size", [64, 1_000])
    async def test_of_64_jobs_are_one_transaction_and_larger_ones_may_be_a_few(self, tmp_path: Path, size: int) -> None:
        """Jobs of a thousand teams would hold SQLite for too long at once. Of the last chunk, one job fails."""
        path, jobs = tmp_path / "jobs.db", [init(number, team_id=number) for number in range(1_000)]
        async with connect(f"sqlite:///{path}", patience=0) as client:
            manager = Manager(client, chunk_size=size)
            await manager.open()
            with closing(apsw.Connection(str(path))) as file:
                refuse = "BEGIN SELECT RAISE(ABORT, 'not this one'); END"
                file.execute(f"CREATE TRIGGER refuse BEFORE INSERT ON jobs WHEN NEW.tenant = '999' {refuse}")
            with pytest.raises(HeadraceError, match="not this one"):
                await manager.bulk_create_jobs(jobs)
            [stored] = (await manager.depths()).values()
            assert stored == 960 if size == 64 else 64 < (stored or 0) < 1_000
            with closing(apsw.Connection(str(path))) as file:
                file.execute("DROP TRIGGER refuse")
            assert len(await manager.bulk_create_jobs(jobs)) == 1_000
            assert await manager.depths() == {0: 1_000}

    async def test_one_that_fails_stops_no_other_and_they_stay_in_order(self) -> None:
        store = Noted(MemoryBackend())
        store.fails = {UUID(int=35).bytes}
        async with on(store) as client:
            manager, jobs = Manager(client, chunk_size=10), plain(100)
            with pytest.raises(Unavailable):
                await manager.bulk_create_jobs(jobs)
            assert store.firsts == list(range(1, 100, 10))
            assert len(await manager.list_jobs(limit=1_000)) == 90

    async def test_five_thousand_jobs_of_parallel_chunks_come_in_order(self, client: Client) -> None:
        """The order is that of priority and time, whichever chunk was stored first."""
        manager, due = Manager(client, chunk_size=700, parallel=True), datetime.now(UTC) - timedelta(days=1)
        await manager.bulk_create_jobs(
            [init(number, scheduled=due - timedelta(seconds=number)) for number in range(5_000)]
        )
        async with Worker(client, "hog", batch=1_000) as worker:
            found: list[int] = []
            while jobs := await worker.dequeue_jobs():
                found += [job.id.int for job in jobs]
        assert found == list(range(5_000, 0, -1))


class TestDepth:
    async def test_room_for_one_admits_one(self, client: Client) -> None:
        manager = Manager(client, depth_limit=10, check_interval="1h", chunk_size=4)
        await manager.bulk_create_jobs(plain(9))
        with pytest.raises(QueueFull) as full:
            await manager.bulk_create_jobs([init(number) for number in range(9, 15)])
        assert ([one.int for one in full.value.admitted], len(full.value.refused)) == ([10], 5)
        assert await manager.depths() == {0: 10}
        assert len(await manager.list_jobs()) == 10

    async def test_is_looked_at_once_in_an_interval(self, client: Client) -> None:
        manager = Manager(client, depth_limit=5, check_interval="1h")
        await manager.bulk_create_jobs(plain(5))
        async with Worker(client, "hog") as worker:
            for job in await worker.dequeue_jobs():
                job.set_state("completed")
                await job.release()
        with pytest.raises(QueueFull):
            await manager.create_job(init(90))
        await manager.depths()
        await manager.create_job(init(90))

    async def test_dead_letters_and_what_runs_do_not_count(self, client: Client) -> None:
        manager = Manager(client, depth_limit=2, check_interval=0)
        async with Worker(client, "hog") as worker:
            for number in range(0, 8, 2):
                await manager.bulk_create_jobs([init(number), init(number + 1)])
                failed, held = await worker.dequeue_jobs()
                failed.set_state("failed")
                await failed.release()
                assert held.held
            assert await manager.depths() == {0: 0}

    async def test_blocks_until_there_is_room(self, client: Client) -> None:
        manager = Manager(client, depth_limit=3, check_interval=0, when_full="block")
        await manager.bulk_create_jobs(plain(3))
        waiting = asyncio.ensure_future(manager.create_job(init(50)))
        async with Worker(client, "hog") as worker:
            assert not (await asyncio.wait([waiting], timeout=0.3))[0]
            assert len(await worker.dequeue_jobs(2)) == 2
            assert (await waiting).int == 51
            quick = Manager(client, depth_limit=0, when_full="block", timeout="200ms")
            with pytest.raises(QueueFull):
                await quick.create_job(init(60))

    async def test_obeys_the_limit_of_the_store_too(self, make_client: MakeClient) -> None:
        async with make_client() as client:
            await App(client).policies.limit_store(4)
            with pytest.raises(QueueFull) as full:
                await Manager(client, depth_limit=100).bulk_create_jobs(plain(6))
            assert len(full.value.admitted) == 4

    @pytest.mark.parametrize("when_full", ["panic", None, True])
    def test_options_are_checked(self, when_full: Any) -> None:
        with pytest.raises(ConfigError, match="when_full"):
            Manager("memory://", when_full=when_full)
        with pytest.raises(ConfigError, match="chunk_size"):
            Manager("memory://", chunk_size=0)
        with pytest.raises(ConfigError, match="depth_limit"):
            Manager("memory://", depth_limit=-1)
        with pytest.raises(ConfigError, match="shards"):
            Manager([])


class TestShards:
    async def test_take_turns(self) -> None:
        async with Manager(["memory://"] * 3, chunk_size=10) as manager:
            await manager.bulk_create_jobs(plain(90))
            assert await manager.depths() == {0: 30, 1: 30, 2: 30}
            assert (await manager.get_job(UUID(int=90))).queue_name == "hog"
            assert len(await manager.list_jobs(limit=1_000)) == 90

    async def test_what_does_not_fit_goes_to_others(self) -> None:
        async with Manager(
            ["memory://"] * 2, chunk_size=50, depth_limit=10, check_interval="1h", when_full="reroute"
        ) as manager:
            with pytest.raises(QueueFull) as full:
                await manager.bulk_create_jobs(plain(50))
            assert len(full.value.admitted) == 20
            assert await manager.depths() == {0: 10, 1: 10}

    async def test_one_that_is_not_there_stops_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headrace.cyclotron.shard._REST", 0.0)
        gone, there = Plain(MemoryBackend()), MemoryBackend()

        async def refuse() -> None:
            raise Unavailable("refused")

        gone.open = refuse  # type: ignore[method-assign]
        async with Manager([on(gone), on(there)], chunk_size=5) as manager:
            await manager.bulk_create_jobs(plain(20))
            assert await manager.depths() == {0: None, 1: 20}
            del gone.open  # type: ignore[attr-defined]
            await manager.bulk_create_jobs([init(number) for number in range(20, 40)])
            assert await manager.depths() == {0: 10, 1: 30}
        for client in (shard.client for shard in manager._shards):
            await client.close()

    async def test_none_that_is_there_is_an_error(self) -> None:
        dead = "postgresql://127.0.0.1:1/nothing?sslmode=disable"
        with pytest.raises(Unavailable):
            await Manager([dead, dead], patience=0).open()

    async def test_have_objects_of_their_own(self, tmp_path: Path) -> None:
        """Each would delete the other's, so shards that would share them are refused, not left out."""
        ours, theirs = ({"url": f"file://{tmp_path}/{name}", "blob": {"over": 0}} for name in ("ours", "theirs"))
        with pytest.raises(ConfigError, match=r"shards 0 and 1: expected objects under a prefix of each one's own"):
            Manager(["memory://"] * 2, objects=ours)
        async with connect("memory://", objects=theirs), connect("memory://") as one:
            async with connect("memory://", objects=ours) as first:
                with pytest.raises(ConfigError, match="shards 1 and 2"):
                    Manager([one, first, connect("memory://", objects=ours)])
                with pytest.raises(ConfigError, match="one that another store uses"):
                    await Manager([first, connect("memory://", objects=theirs)], chunk_size=5).bulk_create_jobs(
                        plain(10)
                    )
            with pytest.raises(ConfigError, match="one that another store uses"):
                await Manager([one, connect("memory://", objects=theirs)]).open()
        places = [{"url": f"file://{tmp_path}/{number}", "blob": {"over": 0}} for number in range(2)]
        async with connect("memory://", objects=places[0]) as one, connect("memory://", objects=places[1]) as other:
            manager = Manager([one, other], chunk_size=5)
            await manager.bulk_create_jobs([init(number, blob=bytes(100)) for number in range(20)])
            assert await manager.depths() == {0: 10, 1: 10}
            assert {(await manager.get_job(UUID(int=number + 1))).blob for number in range(20)} == {bytes(100)}

    async def test_one_that_fails_later_is_left_alone_for_a_while(self) -> None:
        first, second = Plain(MemoryBackend()), MemoryBackend()
        async with on(first) as one, on(second) as other:
            manager = Manager([one, other], chunk_size=5)
            await manager.bulk_create_jobs(plain(10))
            first.away = True
            with pytest.raises(Unavailable):
                await manager.bulk_create_jobs([JobInit(team_id=7, queue_name="hog") for _ in range(10)])
            await manager.bulk_create_jobs([init(number) for number in range(20, 30)])
            assert len(await other.list_jobs(Selector())) >= 15

    async def test_what_is_on_one_that_is_away_is_not_said_to_be_nowhere(self) -> None:
        first, second = Plain(MemoryBackend()), MemoryBackend()
        async with on(first) as one, on(second) as other:
            manager = Manager([one, other], chunk_size=5)
            await manager.bulk_create_jobs(plain(10))
            there = {record.id for record in await other.list_jobs(Selector())}
            first.away = True
            for number in range(10):
                job_id = UUID(int=number + 1)
                if job_id in there:
                    assert (await manager.get_job(job_id)).id == job_id
                    continue
                for look in (manager.get_job, manager.pause_job, manager.resume_job, manager.replay_job):
                    with pytest.raises(Unavailable, match="shard 0 is away"):
                        await look(job_id)
            with pytest.raises(Unavailable, match="shard 0 is away"):
                await manager.list_jobs()
            with pytest.raises(Unavailable, match="shard 0 is away"):
                await manager.get_job(UUID(int=99))
            assert await manager.depths() == {0: None, 1: 5}


class TestTheSameAgain:
    """A call that is repeated stores nothing twice, on however many shards, whatever the first one came to."""

    @pytest.fixture
    def stores(self) -> list[Noted]:
        return [Noted(MemoryBackend()) for _ in range(3)]

    async def stored(self, stores: list[Noted]) -> list[int]:
        """The number of every job on every shard."""
        found: list[int] = []
        for store in stores:
            after = None
            while True:
                page = await store.inner.scan(Selector(), after)
                found += [UUID(bytes=record.id).int for record in page.records]
                if (after := page.after) is None:
                    break
        return sorted(found)

    @pytest.mark.parametrize("objects", ["the same", "others with the same ids"])
    async def test_after_a_chunk_that_failed(
        self, stores: list[Noted], monkeypatch: pytest.MonkeyPatch, objects: str
    ) -> None:
        monkeypatch.setattr("headrace.cyclotron.shard._REST", 0.0)
        stores[1].fails = stores[2].fails = stores[0].fails = {UUID(int=25).bytes}
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(on(store)) for store in stores]
            manager, jobs = Manager(clients, chunk_size=10), plain(50)
            with pytest.raises(Unavailable):
                await manager.bulk_create_jobs(jobs)
            assert await self.stored(stores) == [*range(1, 21), *range(31, 51)]
            for store in stores:
                store.fails = set()
            for _ in range(3):
                again = jobs if objects == "the same" else plain(50)
                assert [job_id.int for job_id in await manager.bulk_create_jobs(again)] == list(range(1, 51))
                assert await self.stored(stores) == list(range(1, 51))
            assert [job_id.int for job_id in await manager.bulk_create_jobs(plain(50)[7:33])] == list(range(8, 34))
            assert await self.stored(stores) == list(range(1, 51))

    @pytest.mark.parametrize("when_full", ["raise", "reroute"])
    async def test_when_some_did_not_fit(self, stores: list[Noted], when_full: Any) -> None:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(on(store)) for store in stores]
            manager = Manager(clients, chunk_size=10, depth_limit=15, check_interval="1h", when_full=when_full)
            jobs, first = plain(60), None
            for again in (jobs, plain(60), jobs):
                with pytest.raises(QueueFull) as full:
                    await manager.bulk_create_jobs(again)
                assert sorted(one.int for one in full.value.admitted) == await self.stored(stores)
                assert len(full.value.admitted) == 45
                assert first in (None, full.value.admitted)
                first = full.value.admitted
            jobs = [job for job in jobs if job.id in set(full.value.refused)]
            wide = Manager(clients, chunk_size=7)
            await wide.bulk_create_jobs(jobs)
            await wide.bulk_create_jobs(plain(60))
            assert await self.stored(stores) == list(range(1, 61))

    async def test_on_one_shard_that_is_full_by_now(self, client: Client) -> None:
        manager = Manager(client, depth_limit=10, check_interval="1h")
        await manager.bulk_create_jobs(plain(10))
        assert len(await manager.bulk_create_jobs(plain(10))) == 10
        with pytest.raises(QueueFull) as full:
            await manager.bulk_create_jobs(plain(12))
        assert (len(full.value.admitted), [one.int for one in full.value.refused]) == (10, [11, 12])

    async def test_while_the_shard_is_away_to_which_they_were_sent(
        self, stores: list[Noted], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody knows whether they are stored there, so they go to no other one."""
        monkeypatch.setattr("headrace.cyclotron.shard._REST", 0.0)
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(on(store)) for store in stores]
            manager, jobs = Manager(clients), plain(5)
            await manager.open()
            for store in stores:
                store.unanswered = True
            with pytest.raises(Unavailable):
                await manager.bulk_create_jobs(jobs)
            [at] = [store for store in stores if await self.stored([store])]
            for store in stores:
                store.unanswered, store.away = False, store is at
            with pytest.raises(Unavailable):
                await manager.bulk_create_jobs(jobs)
            assert await self.stored(stores) == list(range(1, 6))
            at.away = False
            await manager.bulk_create_jobs(jobs)
            assert await self.stored(stores) == list(range(1, 6))

    async def test_after_the_shard_was_away_on_which_they_belong(
        self, stores: list[Noted], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headrace.cyclotron.shard._REST", 0.0)
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(on(store)) for store in stores]
            for gone in range(3):
                stores[gone].away = True
                jobs = [init(100 * gone + number) for number in range(40)]
                await Manager(clients, chunk_size=5).bulk_create_jobs(jobs)
                stores[gone].away = False
                await Manager(clients, chunk_size=5).bulk_create_jobs([init(job.id.int - 1) for job in jobs if job.id])
            assert await self.stored(stores) == [100 * gone + n for gone in range(3) for n in range(1, 41)]

    async def test_another_manager_may_have_fewer_shards(self) -> None:
        async with Manager(["memory://"] * 3) as manager, Manager("memory://") as other:
            jobs = [init(number, shard=2) for number in range(4)]
            await manager.bulk_create_jobs(jobs)
            assert await manager.depths() == {0: 0, 1: 0, 2: 4}
            await other.bulk_create_jobs(jobs)
            assert await other.depths() == {0: 4}
            with pytest.raises(InvalidJob, match="shard"):
                await manager.create_job(init(9, shard="2"))

    async def test_twice_in_one_call(self, stores: list[Noted]) -> None:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(on(store)) for store in stores]
            ids = await Manager(clients, chunk_size=1).bulk_create_jobs([*plain(6), *plain(6)])
            assert [one.int for one in ids] == [*range(1, 7), *range(1, 7)]
            assert await self.stored(stores) == list(range(1, 7))


class TestOptions:
    async def test_vm_state_is_compressed_although_payloads_have_other_settings(self) -> None:
        body = b"a" * 10_000
        for compress in (False, True):
            async with Manager(
                "memory://", compress_vm_state=compress, payloads={"max_size": 20_000, "compress": {"blob": False}}
            ) as manager:
                job_id = await manager.create_job(JobInit(team_id=1, queue_name="q", vm_state=body, blob=body))
                record = await manager._shards[0].client.fetch(job_id, frozenset({"vm_state", "blob"}))
                assert record is not None
                assert (len(record.cells["vm_state"]) < 1_000) is compress
                assert len(record.cells["blob"]) > 9_000
                with pytest.raises(PayloadTooLarge):
                    await manager.create_job(init(1, blob=bytes(20_001)))


async def test_vm_state_is_compressed_if_asked_for() -> None:
    body = b"a" * 10_000
    for compress in (False, True):
        async with Manager("memory://", compress_vm_state=compress) as manager:
            job_id = await manager.create_job(JobInit(team_id=1, queue_name="q", vm_state=body, blob=body))
            shard: Shard = manager._shards[0]
            record = await shard.client.fetch(job_id, frozenset({"vm_state", "blob"}))
            assert record is not None
            assert (len(record.cells["vm_state"]) < 1_000) is compress
            assert len(record.cells["blob"]) < 1_000
            assert (await manager.get_job(job_id)).vm_state == body
