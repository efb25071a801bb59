"""Producers and workers go on while their store moves to another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from headrace import App
from headrace.api.connection import open_backend
from headrace.backends.memory import MemoryBackend
from headrace.backends.postgres import PostgresBackend
from headrace.backends.sqlite import SqliteBackend
from headrace.errors import ConfigError, Unavailable
from headrace.routing import parity, passage
from headrace.routing.mover import Mover
from headrace.routing.moving import Moving
from headrace.routing.passage import Phase
from headrace.routing.shadow import FAILURES, QUEUE, WAITING, WAITING_BYTES, Shadow, twin
from headrace.seam import records as r
from headrace.seam.protocol import Backend
from headrace.types import JobState
from tests import postgres, streams, valkey
from tests.routing.test_mover import job_id, opened, row
from tests.routing.traffic import Traffic


def with_windows(place: Path) -> Backend:
    """PostgreSQL and Valkey together, beside the plain store of PostgreSQL."""
    with psycopg.connect(postgres.server().url(), autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS moved CASCADE")
    return streams.stores.beside(place, valkey.server(), "moved")


STORES: dict[str, Callable[[Path], Backend]] = {
    "memory": lambda place: MemoryBackend(),
    "sqlite": lambda place: SqliteBackend(place / "jobs.db"),
    "postgres": postgres.stores.connect,
    "valkey": valkey.stores.connect,
    "streams": with_windows,
}
PAIRS = [
    ("memory", "memory"),
    ("sqlite", "postgres"),
    ("valkey", "postgres"),
    ("postgres", "sqlite"),
    ("postgres", "streams"),
    ("streams", "sqlite"),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("first", "second"), PAIRS)
async def test_nothing_is_lost_or_doubled_while_work_goes_on(first: str, second: str, tmp_path: Path) -> None:
    """There, back and there again; the mover is killed again and again."""
    old, new = STORES[first](tmp_path), STORES[second](tmp_path)

    async def connect() -> Moving:
        while True:
            try:
                return await opened(old.sibling(), new.sibling())
            except Unavailable:
                await asyncio.sleep(0.1)

    async def killed(journey: Callable[[Mover], object]) -> None:
        """A mover that is killed after a while, and then one that goes on."""
        for patience in (1.5, 0.1, *[600.0] * 20):
            store = await connect()
            try:
                async with asyncio.timeout(patience):
                    await journey(Mover(store, seen=1.2))  # type: ignore[misc]
                    return
            except (TimeoutError, Unavailable):
                continue
            finally:
                await store.close()

    traffic = Traffic(connect, pace=0.01)
    async with traffic.running() as book:
        await killed(lambda mover: mover.start(dual=True))
        while len(book.enqueued) < 100:
            await asyncio.sleep(0.01)
        await killed(Mover.cutover)
        store = await connect()
        transfer = await passage.read(store.old)
        assert transfer is not None
        verdict = await parity.verify(store, transfer)
        assert (transfer.phase, verdict.lost, verdict.doubled) == (Phase.MOVED, 0, 0)
        assert verdict.departed > 0
        await killed(Mover.rollback)
        assert await passage.read(store.old) is None
        await killed(lambda mover: mover.start())
        await killed(Mover.cutover)
        await killed(Mover.finish)
        await store.close()
    book.check()
    end = await connect()
    assert (await end.old.scan(r.Selector())).records == []
    assert sum(queue.completed for queue in (await end.new.stats()).queues) == len(book.enqueued)
    await end.close()


async def moving_halfway() -> tuple[Moving, MemoryBackend, MemoryBackend]:
    """New jobs go to the second store, and nothing has moved yet."""
    old, new = MemoryBackend(), MemoryBackend()
    store = await opened(old, new)
    await Mover(store, seen=0).start()
    await store.insert([row(1, key="a", reply_to="in"), row(2, key="b")])
    await passage.write(old, lambda known: known and passage.Transfer(name="t", phase=Phase.READY, legs=0))
    await Mover(store, seen=0)._turn_round(Phase.READY, Phase.FORWARD)
    return store, old, new


async def test_a_process_that_did_not_hear_of_the_cutover_is_not_refused() -> None:
    """It writes to the store that was left, is refused there, reads the document, and goes to the other one."""
    old, new = MemoryBackend(), MemoryBackend()
    late = await opened(old, new)
    mover = Mover(await opened(old, new), seen=0.0)
    for begin in (mover.start, mover.cutover, mover.rollback):
        await late.look()
        await begin()
        rows = [row(100 + number) for number in range(2)]
        rows = [replace(one, id=job_id(1_000 * (1 + len(begin.__name__)) + n)) for n, one in enumerate(rows)]
        answers = await late.insert(rows)
        assert [answer.status for answer in answers] == [r.InsertStatus.NEW] * 2, begin.__name__


async def test_a_job_that_has_not_moved_is_known_by_id_and_by_key() -> None:
    store, old, new = await moving_halfway()
    answers = await store.insert([row(1), row(3, key="a", reply_to="other"), row(4, key="c")])
    assert [(one.status, one.id) for one in answers] == [
        (r.InsertStatus.SAME, job_id(1)), (r.InsertStatus.DUPLICATE, job_id(1)), (r.InsertStatus.NEW, job_id(4)),
    ]  # fmt: skip
    assert set(old.store.inboxes[job_id(1)]) == {"in", "other"}
    assert [record.id for record in (await new.scan(r.Selector())).records] == [job_id(4)]


async def test_a_job_in_a_parcel_is_taken_along_by_whoever_asks() -> None:
    for ask in ("insert", "key", "fetch", "alter"):
        store, old, new = await moving_halfway()
        await old.transfers.depart((await store.view()).leg, [job_id(1)])
        if ask == "insert":
            [answer] = await store.insert([row(1)])
            assert answer.status is r.InsertStatus.SAME
        elif ask == "key":
            [answer] = await store.insert([row(3, key="a")])
            assert (answer.status, answer.id) == (r.InsertStatus.DUPLICATE, job_id(1))
        elif ask == "fetch":
            [record] = await store.fetch([job_id(1)])
            assert record is not None
        else:
            [altered] = await store.alter(r.Selector(ids=[job_id(1)]), r.Cancel())
            assert altered.after is JobState.CANCELLED
        assert (await new.fetch([job_id(1)]))[0] is not None
        assert await old.transfers.parcels((await store.view()).leg) == []


async def test_claims_and_changes_reach_both_stores() -> None:
    store, _, _ = await moving_halfway()
    await store.insert([row(n) for n in range(3, 9)])
    claimed = await store.claim(r.Claim("w", ("q",), 3, 10**9))
    assert [job.id for job in claimed.jobs] == [job_id(1), job_id(2), job_id(3)]
    leases = [(job.id, job.epoch) for job in claimed.jobs]
    beat = r.Beat("w", "worker", ("q",), 10**9, [*leases, (job_id(7), 1)])
    assert (await store.renew(beat)).lost == [(job_id(7), 1)]
    done = [r.Settlement(job.id, job.epoch, "w", JobState.COMPLETED) for job in claimed.jobs]
    assert await store.finish(done) == [JobState.COMPLETED] * 3
    assert await store.finish(done) == [None] * 3
    stats = await store.stats()
    [queue] = [queue for queue in stats.queues if queue.queue == "q"]
    assert (queue.completed, queue.available) == (3, 5)
    assert len(stats.workers) == 1
    ids: list[bytes] = []
    while some := await store.alter(r.Selector(queue="q", limit=2, above=ids[-1] if ids else None), r.Pause()):
        ids += [one.id for one in some]
    assert ids == [job_id(n) for n in range(4, 9)]
    pages, after = [], None
    while True:
        page = await store.scan(r.Selector(), after, 2)
        pages += [record.id for record in page.records]
        after = page.after
        if after is None:
            break
    assert sorted(pages) == sorted({*pages})
    assert len([one for one in pages if one[:2] == b"\x01\x90"]) >= 8


class Broken(MemoryBackend):
    error: Exception = Unavailable("away")

    async def insert(self, rows: object, at: r.Stamp = None) -> list[r.Inserted]:
        raise self.error


@pytest.mark.parametrize("error", [Unavailable("away"), RuntimeError("a fault of a driver"), OSError()], ids=repr)
async def test_copies_never_hurt_those_who_enqueue(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broken, "error", error)
    clock = [0.0]
    shadow = Shadow(Broken(), lambda: clock[0])
    for _ in range(FAILURES):
        await shadow.write([row(1)])
    await shadow.write([row(1), row(2)])
    assert (shadow.counts.failed, shadow.counts.dropped) == (FAILURES, 2), "the breaker is open"
    clock[0] = 61.0
    await shadow.write([row(1)])
    assert shadow.counts.failed == FAILURES + 1
    shadow.offer([row(n) for n in range(WAITING + 5)])
    assert shadow.counts.dropped == 7
    await shadow.close()
    old = MemoryBackend()
    store = await opened(old, Broken())
    await passage.write(old, lambda _: passage.Transfer(name="t", phase=Phase.DUAL))
    await store.look()
    assert [one.status for one in await store.insert([row(1)])] == [r.InsertStatus.NEW]


async def test_copies_that_wait_are_bounded_by_their_bytes() -> None:
    shadow = Shadow(MemoryBackend(), lambda: 0.0)
    large = [replace(row(n), cells={"blob": bytes(WAITING_BYTES // 4)}) for n in range(7)]
    shadow.offer(large[:6])
    assert shadow.counts.dropped == 2
    async with asyncio.timeout(60):
        while shadow.counts.written < 4:
            await asyncio.sleep(0)
    shadow.offer(large[6:])
    assert shadow.counts.dropped == 2, "what was written makes room"
    await shadow.close()


async def test_copies_are_compared_with_their_jobs() -> None:
    old, new = MemoryBackend(now=lambda: 10**15), MemoryBackend()
    store = await opened(old, new)
    await Mover(store, seen=0).start(dual=True)
    await store.look()
    await store.insert([row(n) for n in range(4)], 10**15)
    later = await opened(MemoryBackend(old.store, lambda: 10**15 + 10**8), new)
    transfer = await passage.read(old)
    assert transfer is not None
    assert (await parity.compare(later, transfer)).alike == 4
    assert {record.queue for record in (await new.scan(r.Selector())).records} == {QUEUE}
    assert (await new.claim(r.Claim("w", ("q", QUEUE), 9, 9))).jobs == []
    await new.alter(r.Selector(ids=[twin(job_id(2))]), r.Delete())
    new.store.jobs[twin(job_id(3))].cells = {}
    found = await parity.compare(later, transfer)
    assert (found.checked, found.alike, found.missing, found.different) == (4, 2, 1, 1)
    assert {*found.examples} == {job_id(2).hex(), job_id(3).hex()}


@pytest.mark.parametrize(
    "url", ["sqlite:///a.db ->", "-> sqlite:///a.db", "a -> b -> c", "sqlite:///a.db -> sqlite:///a.db", "x:// -> y://"]
)
def test_a_url_names_two_stores(url: str) -> None:
    with pytest.raises(ConfigError, match="store URL"):
        open_backend(url)


async def test_an_app_follows_its_store(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/a.db -> sqlite:///{tmp_path}/b.db")

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app:
        first = await double.enqueue(1)
        store = open_backend(app.client.settings.url)
        assert isinstance(store, Moving)
        await store.open()
        mover = Mover(store, seen=1.2)
        await mover.start()
        await mover.cutover()
        second = await double.enqueue(2)
        await app.drain()
        assert await first.result() == 2
        assert await second.result() == 4
        await store.close()


async def test_a_source_goes_on_where_it_was(tmp_path: Path) -> None:
    """How far it has read moves with its jobs, there and back; one that did not hear of the cutover is refused."""
    old, new = postgres.stores.connect(tmp_path), PostgresBackend(postgres.server().url(), schema="moved")
    store, late = await opened(old, new), await opened(old.sibling(), new.sibling())
    step = r.Step("orders/0", None, 7)

    async def advance(store: Moving, number: int, seen: int | None, upto: int) -> bool:
        assert store.tx is not None
        async with store.tx.begin() as joined:
            [answer] = await joined.insert([row(number)])
            assert answer.status is r.InsertStatus.NEW
            return await joined.advance("kafka:shop", [replace(step, seen=seen, next=upto)])

    async def stored(store: Backend) -> dict[str, int]:
        assert store.tx is not None
        async with store.tx.begin() as joined:
            assert await joined.sources("kafka:") == ["kafka:shop"]
            return await joined.positions("kafka:shop")

    assert await advance(store, 1, None, 7)
    await Mover(store, seen=0).start()
    await Mover(store, seen=0).cutover()
    assert await stored(new) == {"orders/0": 7}
    assert await advance(late, 2, 7, 9)
    assert await stored(new) == {"orders/0": 9}
    await Mover(store, seen=0).rollback()
    assert await stored(old) == {"orders/0": 9}
    assert await advance(late, 3, 9, 11)
    assert await stored(old) == {"orders/0": 11}
    for one in (store, late):
        await one.close()
