"""Several stores as one: routes, and shards that are away."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import App
from headrace.api.connection import open_backend
from headrace.backends.memory import MemoryBackend
from headrace.errors import ConfigError, Unavailable
from headrace.routing.routes import parse_routes
from headrace.routing.shadow import KEPT, QUEUE
from headrace.routing.sharded import Router
from headrace.seam import records as r
from headrace.seam.policy import STORE, Policy
from headrace.testing.conformance import BackendConformance
from headrace.types import JobState
from tests.routing.test_mover import job_id, row


class TestRouter(BackendConformance):
    """All jobs go to one shard, and every question to both."""

    capabilities = (
        "hints", "policies", "store_depth", "ticks", "references", "documents", "archive", "tracks",
        "finish_and_claim", "events", "journal", "parts", "usage",
    )  # fmt: skip

    def connect(self, place: Path) -> Router:
        return Router({"empty": MemoryBackend(), "main": MemoryBackend()}, "*=main")


@pytest.mark.parametrize(
    ("routes", "said"),
    [
        ("mail=bulk", "a rule for all other jobs"),
        ("", "a rule for all other jobs"),
        ("mail=bulk, mail=main, *=main", "one rule for mail, got two"),
        ("mail=hulk, *=main", "one of the shards main, bulk"),
        ("mail:0=bulk, *=main", "above 0 and up to 1"),
        ("mail:1.1=bulk, *=main", "above 0 and up to 1"),
        ("mail:x=bulk, *=main", "above 0 and up to 1"),
        ("*:0.5=main", "expected a queue"),
        ("colour/red=bulk, *=main", "expected a queue"),
        ("later/soon=bulk, *=main", "later"),
        ("tenant/=bulk, *=main", "tenant"),
        ("bulk, *=main", "MATCH=SHARD"),
        ("full=main, *=main", "another shard"),
    ],
)
def test_routes_that_are_wrong_are_refused(routes: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_routes(routes, ["main", "bulk"])


@pytest.mark.parametrize(
    "url", ["a=memory:// | *=b", "a=memory:// | a=memory:// | *=a", "memory:// | *=a", "| *=a", "A=memory:// | *=A"]
)
def test_urls_of_shards_that_are_wrong_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        open_backend(url)


@pytest.mark.parametrize(
    "url",
    [
        "main = redis://:top | secret@db | *=main", "a = postgresql://bob:top -> secret@db/x | *=a",
        "postgresql://bob:top -> secret@db/x", "redis://:top | secret@db", "sqlite:///a.db -> redis://u:top | secret@h",
    ],
)  # fmt: skip
def test_a_password_that_is_cut_in_two_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_backend(url)
    assert "top" not in str(refused.value)
    assert "secret" not in str(refused.value)


async def test_a_bar_or_an_arrow_without_blanks_is_part_of_a_name(tmp_path: Path) -> None:
    for name in ("a|b.db", "a->b.db"):
        store = open_backend(f"sqlite:///{tmp_path}/{name}")
        await store.open()
        await store.close()
        assert (tmp_path / name).exists()
    assert type(open_backend("redis://:to|ken@db")).__name__ == "RedisBackend"
    assert type(open_backend("sqlite:///a.db->sqlite:///b.db")).__name__ == "Moving"


async def opened(routes: str) -> tuple[Router, MemoryBackend, MemoryBackend]:
    main, bulk = MemoryBackend(), MemoryBackend()
    store = Router({"main": main, "bulk": bulk}, routes)
    await store.open()
    return store, main, bulk


async def ids(store: MemoryBackend) -> set[bytes]:
    return {record.id for record in (await store.scan(r.Selector(), limit=5_000)).records}


async def test_jobs_go_where_the_routes_say() -> None:
    store, main, bulk = await opened("tenant/acme=bulk, task/slow=bulk, later/1h=bulk, *=main")
    rows = [
        row(1), row(2, tenant="acme"), r.Row(id=job_id(3), queue="q", task="slow", cells={}),
        row(4, delay=3_600_000_001), row(5, delay=3_600_000_000), row(6, delay=10**12, key="k"),
    ]  # fmt: skip
    for _ in range(2):
        await store.insert(rows)
    assert await ids(bulk) == {job_id(n) for n in (2, 3, 4)}
    assert await ids(main) == {job_id(n) for n in (1, 5, 6)}
    claimed = await store.claim(r.Claim("w", ("q",), 10, 10**9))
    assert len(claimed.jobs) == 3
    done = [r.Settlement(job.id, job.epoch, "w", JobState.COMPLETED) for job in claimed.jobs]
    assert await store.finish(done) == [JobState.COMPLETED] * 3


async def test_a_share_is_always_the_same_jobs_and_keys_stay_together() -> None:
    store, main, bulk = await opened("q:0.3=bulk, *=main")
    await store.insert([row(n) for n in range(1_000)])
    assert 200 < len(await ids(bulk)) < 400
    there = await ids(bulk)
    assert {one.status for one in await store.insert([row(n) for n in range(1_000)])} == {r.InsertStatus.SAME}
    assert await ids(bulk) == there
    first = await store.insert([row(2_000 + n, key=f"k{n}") for n in range(50)])
    again = await store.insert([row(3_000 + n, key=f"k{n}") for n in range(50)])
    assert [one.id for one in again] == [one.id for one in first]
    assert len(await ids(main)) + len(await ids(bulk)) == 1_050


async def test_a_full_shard_spills_and_a_repeated_insert_finds_the_job() -> None:
    store, main, bulk = await opened("full=bulk, *=main")
    assert await main.policies.save(Policy(queue=STORE, depth=2))
    answers = await store.insert([row(n) for n in range(4)] + [row(9, key="k")])
    assert [one.status for one in answers] == [r.InsertStatus.NEW] * 4 + [r.InsertStatus.FULL]
    assert await ids(bulk) == {job_id(2), job_id(3)}
    assert await main.policies.save(Policy(queue=STORE, version=1))
    assert [one.status for one in await store.insert([row(2), row(3)])] == [r.InsertStatus.SAME] * 2
    assert await ids(main) == {job_id(0), job_id(1)}


async def test_copies_go_to_a_shard_that_is_tried() -> None:
    store, main, bulk = await opened("dual=bulk, *=main")
    await store.insert([row(1), row(2)])
    assert len(await ids(main)) == 2
    assert {record.queue for record in (await bulk.scan(r.Selector())).records} == {QUEUE}
    assert len((await store.claim(r.Claim("w", ("q", QUEUE), 9, 9))).jobs) == 2


async def test_copies_are_not_counted_as_jobs_and_go_after_a_day() -> None:
    store, _, bulk = await opened("dual=bulk, *=main")
    await store.insert([row(1), row(2)])
    assert [(queue.queue, queue.available) for queue in (await store.stats()).queues] == [("q", 2)]
    assert [(one.waiting, one.copies) for one in await store.states()] == [(2, 0), (0, 2)]
    later = await store.now() + KEPT
    assert (await bulk.claim(r.Claim("w", (QUEUE,), 9, 10**9), later)).jobs == []
    await bulk.reap(r.Reap(), later)
    assert {record.state for record in (await bulk.scan(r.Selector())).records} == {JobState.CANCELLED}
    swept = r.SweepClause(target=r.SweepTarget.CANCELLED, older_than=0)
    assert (await store.sweep(swept, later + 1)).removed == 2


class Away(MemoryBackend):
    away = False

    async def claim(self, req: r.Claim, at: r.Stamp = None) -> r.Claimed:
        self._look()
        return await super().claim(req, at)

    async def renew(self, beat: r.Beat, at: r.Stamp = None) -> r.Renewed:
        self._look()
        return await super().renew(beat, at)

    async def stats(self, at: r.Stamp = None, *, queues: object = None) -> r.Stats:
        self._look()
        return await super().stats(at, queues=None)

    def _look(self) -> None:
        if self.away:
            raise Unavailable("gone")


async def test_a_shard_that_is_away_keeps_nobody_from_the_others() -> None:
    main, bulk = MemoryBackend(), Away()
    store = Router({"main": main, "bulk": bulk}, "tenant/acme=bulk, *=main")
    await store.open()
    await store.insert([row(1), row(2, tenant="acme"), row(3)])
    [first] = (await bulk.claim(r.Claim("w", ("q",), 1, 10**9))).jobs
    bulk.away = True
    claimed = await store.claim(r.Claim("w", ("q",), 5, 10**9))
    assert {job.id for job in claimed.jobs} == {job_id(1), job_id(3)}
    assert claimed.doubtful
    renewed = await store.renew(r.Beat("w", "worker", ("q",), 10**9, [(first.id, first.epoch)]))
    assert (renewed.lost, renewed.doubtful) == ([], True)
    main_state, bulk_state = await store.states()
    assert (main_state.routes, main_state.running, main_state.error) == (("*=main",), 2, "")
    assert (bulk_state.routes, bulk_state.error) == (("tenant/acme=bulk",), "gone")


async def test_an_app_on_shards(tmp_path: Path) -> None:
    app = App(f"main = sqlite:///{tmp_path}/a.db | bulk = sqlite:///{tmp_path}/b.db | mail=bulk, *=main")

    @app.task(queue="mail")
    async def send(name: str) -> str:
        return name

    @app.task
    async def other(name: str) -> str:
        return name

    async with app:
        handles = [await send.enqueue("ada"), await other.enqueue("bob")]
        await app.drain()
        assert [await handle.result() for handle in handles] == ["ada", "bob"]
