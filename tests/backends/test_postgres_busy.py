"""Jobs that somebody else's transaction has in hand: a claim passes them over, and says that there is something due."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace import App, Client
from headrace.backends.postgres import PostgresBackend
from headrace.seam.policy import Policy
from headrace.seam.records import Cancel, Claim, Claimed, Reap, Row, Selector, Stamp, Watch
from tests.facades.harness import settings
from tests.postgres import SCHEMA, server, stores

T0 = 1_700_000_000_000_000
LEASE = 60_000_000


def job_id(number: int) -> bytes:
    return number.to_bytes(16)


def row(number: int, **fields: Any) -> Row:
    return Row(id=job_id(number), queue=fields.pop("queue", "q"), task="t", cells={}, **fields)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PostgresBackend]:
    backend = stores.connect(tmp_path)
    await backend.open()
    yield backend
    await backend.close()


@contextmanager
def in_hand(*numbers: int) -> Iterator[psycopg.Connection[Any]]:
    """Another transaction has these waiting jobs in hand, until the end or until it commits."""
    with psycopg.connect(server().url(), options=f"-c search_path={SCHEMA}") as connection:
        locked = connection.execute(
            "SELECT id FROM ready WHERE id = ANY (%s::uuid[]) FOR UPDATE",
            ([job_id(number).hex() for number in numbers],),
        ).fetchall()
        assert len(locked) == len(numbers)
        yield connection


async def claim(store: PostgresBackend, *queues: str, limit: int = 10, **fields: Any) -> Claimed:
    return await store.claim(Claim("w", queues or ("q",), limit, LEASE, **fields), T0)


def numbers(claimed: Claimed) -> list[int]:
    return [int.from_bytes(job.id) for job in claimed.jobs]


@pytest.mark.parametrize("governed", [False, True])
async def test_a_claim_that_passed_over_a_due_job_says_so(store: PostgresBackend, governed: bool) -> None:
    if governed:
        assert await store.policies.save(Policy(queue="q", running=100), T0)
    await store.insert([row(1), row(2), row(3, priority=5), row(4, delay=LEASE)], T0)
    with in_hand(1):
        claimed = await claim(store)
        assert (numbers(claimed), claimed.next_in) == ([2, 3], 0)
        claimed = await claim(store)
        assert (numbers(claimed), claimed.next_in) == ([], 0)
    claimed = await claim(store)
    assert (numbers(claimed), claimed.next_in) == ([1], LEASE)


@pytest.mark.parametrize("locked", [1, 3])
@pytest.mark.parametrize("governed", [(), ("q",), ("r",), ("q", "r")])
async def test_so_does_one_from_several_queues(store: PostgresBackend, governed: tuple[str, ...], locked: int) -> None:
    for queue in governed:
        assert await store.policies.save(Policy(queue=queue, running=100), T0)
    await store.insert([row(1), row(2, queue="r"), row(3, queue="r")], T0)
    with in_hand(locked):
        claimed = await claim(store, "q", "r")
        assert (sorted(numbers(claimed)), claimed.next_in) == (sorted({1, 2, 3} - {locked}), 0)
    claimed = await claim(store, "q", "r")
    assert (numbers(claimed), claimed.next_in) == ([locked], None)


@pytest.mark.parametrize("queues", [2, 3, 5, 20])
async def test_a_claim_from_several_queues_has_in_hand_what_it_takes(store: PostgresBackend, queues: int) -> None:
    """Two at once share what there is, each in the order in which it comes, however many queues they name."""
    names = [f"q{n}" for n in range(queues)]
    await store.insert([row(n, queue=names[n * 7 % queues], priority=n // 50) for n in range(1, 201)], T0)
    with psycopg.connect(server().url(), options=f"-c search_path={SCHEMA}") as connection:
        query = "SELECT id FROM claim_v1(%s, 'a', %s, 100, %s, 15::smallint, NULL, 1000000, true) WHERE id IS NOT NULL"
        first = connection.execute(query, (T0, names, LEASE)).fetchall()
        assert sorted(job[0].int for job in first) == [*range(1, 101)]
        claimed = await claim(store, *names, limit=60)
        assert numbers(claimed) == [*range(101, 161)]
        claimed = await claim(store, *names, limit=60)
        assert (numbers(claimed), claimed.next_in) == ([*range(161, 201)], 0)
    assert (await claim(store, *names)).next_in is None


async def test_what_a_claim_could_not_have_had_is_not_told(store: PostgresBackend) -> None:
    await store.insert([row(1), row(2, delay=LEASE), row(3, queue="other")], T0)
    with in_hand(2, 3):
        claimed = await claim(store, limit=1)
        assert (numbers(claimed), claimed.next_in) == ([1], None)
        claimed = await claim(store)
        assert (numbers(claimed), claimed.next_in) == ([], LEASE)


@pytest.mark.parametrize("governed", [False, True])
async def test_a_job_on_its_last_chance_is_not_taken_for_one_that_somebody_has_in_hand(
    store: PostgresBackend, governed: bool
) -> None:
    if governed:
        assert await store.policies.save(Policy(queue="q", running=100), T0)
    await store.insert([row(1)], T0)
    assert numbers(await claim(store)) == [1]
    now = T0 + LEASE
    await store.reap(Reap(), now)
    await store.insert([row(2)], now)
    asked = Claim("w", ("q",), 10, LEASE, lost_below=1)
    with in_hand(2):
        claimed = await store.claim(asked, now)
        assert (numbers(claimed), claimed.passed_over, claimed.next_in) == ([], True, 0)
    claimed = await store.claim(asked, now)
    assert (numbers(claimed), claimed.passed_over, claimed.next_in) == ([2], True, None)


async def test_a_claim_looks_again_for_an_expired_job_that_somebody_has_in_hand(store: PostgresBackend) -> None:
    """It is the claims that end it, so a worker that is to leave nothing behind must come again."""
    await store.insert([row(1, expires=1)], T0 - 10)
    with in_hand(1):
        claimed = await claim(store)
        assert (numbers(claimed), claimed.next_in) == ([], 0)
    claimed = await claim(store)
    assert (numbers(claimed), claimed.next_in, len(claimed.expired)) == ([], None, 1)


async def test_a_watch_locks_its_job_for_a_moment_only(store: PostgresBackend) -> None:
    """A Watch lets go of its lock without waiting for a disk; a Cancel does not."""
    await store.insert([row(1), row(2)], T0)
    with psycopg.connect(server().url(), options=f"-c search_path={SCHEMA}") as connection:
        for kind, synced in ((7, "off"), (1, "on")):
            connection.execute(
                "SELECT * FROM alter_v1("
                "NULL, ARRAY[%s::uuid], %s, 'in', NULL, '{0,1,2}', false, NULL, '{0,1,2,3,4,5}')",
                (job_id(1).hex(), kind),
            )
            assert connection.execute("SHOW synchronous_commit").fetchone() == (synced,)
            connection.rollback()
    assert [told.changed for told in await store.alter(Selector(ids=[job_id(1)]), Watch("in"), T0)] == [True]
    assert [told.changed for told in await store.alter(Selector(ids=[job_id(1)]), Cancel(), T0)] == [True]


class _Counted(PostgresBackend):
    """Tells when somebody has claimed a few times."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.claims = 0
        self.claimed_thrice = asyncio.Event()

    async def claim(self, req: Claim, at: Stamp = None) -> Claimed:
        claimed = await super().claim(req, at)
        self.claims += 1
        if self.claims == 3:
            self.claimed_thrice.set()
        return claimed


async def test_drain_does_not_end_while_a_due_job_is_locked(tmp_path: Path) -> None:
    stores.connect(tmp_path)
    backend = _Counted(server().url(), schema=SCHEMA)
    app = App(Client(backend, settings(url=server().url())))
    ran: list[int] = []

    @app.task
    async def note(number: int) -> None:
        ran.append(number)

    async with app:
        handle = await note.enqueue(1)
        with psycopg.connect(server().url(), options=f"-c search_path={SCHEMA}") as connection:
            connection.execute("SELECT 1 FROM ready WHERE id = %s::uuid FOR UPDATE", (str(handle.id),))
            drain = asyncio.create_task(app.drain())
            thrice = asyncio.create_task(backend.claimed_thrice.wait())
            async with asyncio.timeout(30):
                await asyncio.wait({drain, thrice}, return_when=asyncio.FIRST_COMPLETED)
                assert not drain.done()
                connection.commit()
                await drain
    assert ran == [1]
