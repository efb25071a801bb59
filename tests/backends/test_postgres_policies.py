"""Groups, policies and depth on PostgreSQL: the same answers as the model, whatever happens in whatever order; nobody
waits for a transaction that lasts; nothing is left behind."""

from __future__ import annotations

import asyncio
import random
import re
from ast import literal_eval
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from headrace.backends.memory import MemoryBackend
from headrace.backends.postgres import PostgresBackend
from headrace.core.driving import drive
from headrace.seam.policy import STORE, Policy, QueuePause, Rate, TenantLimit
from headrace.seam.protocol import Backend
from headrace.seam.records import (
    Beat,
    Cancel,
    Change,
    Claim,
    Claimed,
    Delete,
    InsertStatus,
    Leased,
    Move,
    Pause,
    Reap,
    Reaped,
    Reprioritise,
    Requeue,
    Reschedule,
    Resume,
    Row,
    Selector,
    Settlement,
    SweepClause,
    SweepTarget,
)
from headrace.types import JobState
from tests.postgres import server

SCHEMA = "policed"
T0 = 1_700_000_000_000_000
SECOND = 1_000_000
DAY = 86_400 * SECOND
LEASE = 60 * SECOND
TABLES = ("news", "looks", "lanes", "tenants", "ready", "leased")


def job_id(number: int) -> bytes:
    return number.to_bytes(16)


def row(number: int, **fields: Any) -> Row:
    return Row(id=job_id(number), queue=fields.pop("queue", "q"), task=fields.pop("task", "t"), cells={}, **fields)


def done(job: Leased, holder: str = "w") -> Settlement:
    return Settlement(job.id, job.epoch, holder, JobState.COMPLETED)


@pytest.fixture(scope="module", autouse=True)
def schema() -> Iterator[None]:
    async def install() -> None:
        backend = PostgresBackend(server().url(), schema=SCHEMA)
        await backend.open()
        await backend.close()

    asyncio.run(install())
    yield
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


def blank() -> None:
    """Nothing is in the store."""
    with psycopg.connect(server().url(), autocommit=True) as connection:
        query = (
            "SELECT tablename FROM pg_tables WHERE schemaname = %s"
            " AND tablename NOT IN ('migrations', 'locks', 'duties', 'forgetting')"
        )
        tables = ", ".join(f'{SCHEMA}."{name}"' for [name] in connection.execute(query, (SCHEMA,)))
        connection.execute(f"TRUNCATE {tables}".encode())


@pytest.fixture
async def store() -> AsyncIterator[PostgresBackend]:
    blank()
    backend = PostgresBackend(server().url(), schema=SCHEMA, listen=False)
    await backend.open()
    yield backend
    await backend.close()


def left() -> dict[str, int]:
    """How many rows are in the tables that serve turns and groups."""
    with psycopg.connect(server().url(), autocommit=True) as connection:
        found = {}
        for table in TABLES:
            [[found[table]]] = connection.execute(f"SELECT count(*) FROM {SCHEMA}.{table}".encode())
        return {table: rows for table, rows in found.items() if rows}


def hidden() -> list[Any]:
    """The tenants that no claim would find, as they come before the marks."""
    with psycopg.connect(server().url(), autocommit=True) as connection:
        return connection.execute(
            f"SELECT o.*, t.* FROM {SCHEMA}.tenants AS o JOIN {SCHEMA}.turns AS t USING (qid) "
            "WHERE (o.awake AND (o.count, o.since, o.tenant) < (t.low_count, t.low_since, t.low_tenant))"
            " OR o.wake_at < t.low_wake"
        ).fetchall()


# -- the model


_BYTES = re.compile(r"""(?<![\w'])b'(?:[^'\\]|\\.)*'|(?<![\w'])b"(?:[^"\\]|\\.)*\"""")
_USUAL = re.compile(r"\b\w+=(?:None|False|0|''|\{\}|\[\]|\(\)), ")


def shown(value: Any) -> str:
    """Short: ids as numbers, and without what is as it always is."""
    return _USUAL.sub("", _BYTES.sub(lambda found: str(int.from_bytes(literal_eval(found[0]))), repr(value)))


def ordered(answer: Any) -> Any:
    """What may come in any order, in one."""
    if isinstance(answer, tuple) and isinstance(answer[-1], Claimed):
        return (*answer[:-1], ordered(answer[-1]))
    if isinstance(answer, Claimed):
        return replace(answer, expired=ordered(list(answer.expired)))
    if isinstance(answer, list | tuple) and answer and isinstance(answer[0], Reaped):
        return sorted(answer, key=attrgetter("id"))
    return answer


class Twins:
    """The store and the model, which are asked the same and have to answer the same."""

    def __init__(self, store: Backend, seed: int) -> None:
        self.draw = random.Random(seed)
        self.pair: tuple[Backend, Backend] = (store, MemoryBackend())
        self.now = T0
        self.number = 0
        self.leased: dict[bytes, tuple[Leased, str]] = {}
        self.grouped: set[bytes] = set()
        self.told: list[str] = []

    async def both(self, name: str, *args: Any) -> Any:
        self.told.append(f"+{self.now - T0}: {name}{shown(args)}")
        answers = []
        for store in self.pair:
            target: Any = store
            for part in name.split("."):
                target = getattr(target, part)
            answers.append(ordered(await target(*args, self.now)))
        if answers[0] != answers[1]:
            pytest.fail("\n".join([*self.told, f"store: {shown(answers[0])}", f"model: {shown(answers[1])}"]))
        return answers[0]

    async def insert(self) -> None:
        rows = []
        for _ in range(self.draw.randint(1, 8)):
            self.number += 1
            group = self.draw.choice((None, None, None, "g", "h"))
            rows.append(
                row(
                    self.number,
                    queue=self.draw.choice("qqqr"),
                    task=self.draw.choice("tuv"),
                    tenant=self.draw.choice("aaabcd"),
                    priority=self.draw.choice((0, 0, 0, 1, -1)),
                    delay=self.draw.choice((0, 0, 0, 0, SECOND, 5 * SECOND)),
                    group=group,
                    expires=None if group else self.draw.choice((None, None, None, None, 2 * SECOND)),
                    key=self.draw.choice((None, None, None, "k")),
                )
            )
        await self.both("insert", rows)

    def request(self) -> Claim:
        holder = self.draw.choice(("w", "x"))
        queues = self.draw.choice((("q",), ("q",), ("q",), ("r",), ("q", "r"), ("r", "q", "p")))
        return Claim(
            holder, queues, self.draw.choice((1, 2, 3, 7, 20)), LEASE, lost_below=self.draw.choice((None, None, 1))
        )

    def took(self, claimed: Claimed, holder: str) -> None:
        for job in claimed.jobs:
            self.leased[job.id] = job, holder

    async def claim(self) -> None:
        req = self.request()
        self.took(await self.both("claim", req), req.holder)

    async def finish_and_claim(self) -> None:
        req = self.request()
        mine = sorted(n for n, (job, holder) in self.leased.items() if holder == req.holder and job.group is None)
        jobs = [self.leased.pop(n)[0] for n in self.draw.sample(mine, min(len(mine), self.draw.randint(1, 6)))]
        batch = [Settlement(job.id, job.epoch, req.holder, JobState.COMPLETED) for job in jobs]
        _, claimed = await self.both("finish_and_claim", batch, req)
        self.took(claimed, req.holder)

    async def finish(self) -> None:
        chosen = self.draw.sample(sorted(self.leased), min(len(self.leased), self.draw.randint(1, 6)))
        batch = []
        for name in chosen:
            job, holder = self.leased.pop(name)
            self.grouped |= {job.id} if job.group is not None else set()
            state = self.draw.choice([JobState.COMPLETED] * 4 + [JobState.AVAILABLE, JobState.PAUSED, JobState.FAILED])
            settlement = Settlement(job.id, job.epoch, holder, state)
            if state is JobState.AVAILABLE:
                settlement = replace(
                    settlement,
                    delay=self.draw.choice((0, SECOND, None)),
                    queue=self.draw.choice((None, None, "q", "r")),
                )
            batch.append(settlement)
        # Within a batch, groups are called when all of it is done: who wakes may then have been called before or after.
        for part in [batch] if all(one.id not in self.grouped for one in batch) else [[one] for one in batch]:
            await self.both("finish", part)

    async def alter(self) -> None:
        ids = [job_id(self.draw.randint(1, max(self.number, 1))) for _ in range(self.draw.randint(1, 3))]
        changes: list[Change] = [
            Cancel(),
            Pause(),
            Resume(),
            Requeue(),
            Move("r"),
            Move("q"),
            Reprioritise(1),
            Reschedule(),
            Reschedule(SECOND),
            Reschedule(run_at=T0),
            Delete(),
        ]
        await self.both("alter", Selector(ids=ids), self.draw.choice(changes))

    async def reap(self) -> None:
        if self.draw.random() < 0.5:
            self.now += LEASE
            self.leased.clear()
        await self.both("reap", Reap(max_lost=1))

    async def pause(self) -> None:
        paused, lasts = self.draw.random() < 0.6, self.draw.choice((None, SECOND, 3 * SECOND))
        whom = self.draw.choice((("q", None, None), ("q", "a", None), ("q", None, "u"), ("r", None, None)))
        await self.both("policies.pause", QueuePause(*whom, paused, lasts))

    async def save(self) -> None:
        draw = self.draw
        known = {one.policy.queue: one.policy for one in await self.both("policies.find", None)}
        queue = draw.choice("qqr")
        policy = Policy(
            queue=queue,
            version=known[queue].version if queue in known else 0,
            running=draw.choice((None, None, 3, 6)),
            rate=draw.choice((None, None, Rate(SECOND, 4))),
            tenant_running=draw.choice((None, None, 2)),
            tenant_rate=draw.choice((None, None, Rate(SECOND, 2))),
            task_rates=draw.choice(({}, {}, {"u": Rate(SECOND)}, {"u": Rate(SECOND, 2), "v": Rate(2 * SECOND)})),
            tenant_workers=draw.choice((None, 1, 2)),
            tenant_batch=draw.choice((1, 2, 10)),
            ageing=draw.choice((None, None, SECOND)),
            group_running=1,
            depth=draw.choice((None, None, 12)),
        )
        assert await self.both("policies.save", policy)

    async def limit(self) -> None:
        rate = self.draw.choice((None, Rate(2 * SECOND)))
        await self.both(
            "policies.limit", TenantLimit("q", self.draw.choice("ab"), self.draw.choice((None, 1, 3)), rate)
        )

    async def wait(self) -> None:
        self.now += self.draw.choice((1, SECOND // 2, SECOND, 2 * SECOND))

    async def look(self) -> None:
        for queue in "qr":
            for group in "gh":
                store, model = self.pair
                assert store.policies is not None
                assert model.policies is not None
                known = await model.policies.group(queue, group)
                assert await store.policies.group(queue, group) == known, "\n".join(self.told)
        await self.both("policies.find", None)
        assert hidden() == []

    async def live(self, steps: int) -> None:
        weights = {
            self.insert: 6, self.claim: 9, self.finish: 6, self.finish_and_claim: 6, self.alter: 3, self.reap: 1,
            self.pause: 1, self.save: 1, self.limit: 1, self.wait: 4, self.look: 1,
        }  # fmt: skip
        for step in self.draw.choices(list(weights), list(weights.values()), k=steps):
            if step != self.finish or self.leased:
                await step()


@pytest.mark.parametrize("seed", range(12))
async def test_the_answers_are_those_of_the_model(store: PostgresBackend, seed: int) -> None:
    await Twins(store, seed).live(150)


# -- transactions that last


def bound_insert(connection: psycopg.Connection[Any], store: PostgresBackend, *rows: Row) -> list[InsertStatus]:
    """Insert in a transaction of the caller's own."""
    joined = store.tx.join(connection)
    assert joined.blocks
    return [answer.status for answer in drive(joined.insert(rows))]


async def test_nobody_waits_for_a_transaction_that_brings_jobs_into_turns_and_groups(store: PostgresBackend) -> None:
    assert await store.policies.save(Policy(queue="q", tenant_running=5, depth=100), T0)
    await store.insert([row(1, tenant="a", group="g"), row(2, tenant="a")], T0)
    jobs = (await store.claim(Claim("w", ("q",), 10, LEASE), T0)).jobs
    with psycopg.connect(server().url()) as connection:
        bound_insert(connection, store, row(3, tenant="a", group="g"), row(4, tenant="b"))
        async with asyncio.timeout(60):
            await store.insert([row(5, tenant="a", group="g"), row(6, tenant="b")], T0)
            assert await store.finish([done(job) for job in jobs], T0) == [JobState.COMPLETED] * 2
            claimed = await store.claim(Claim("w", ("q",), 10, LEASE), T0)
            assert {job.id for job in claimed.jobs} == {job_id(5), job_id(6)}
            await store.renew(Beat("w", "w", ("q",), LEASE, [(job.id, job.epoch) for job in claimed.jobs]), T0)
            await store.reap(Reap(), T0)
            await store.finish([done(job) for job in claimed.jobs], T0)
        connection.commit()
    later = T0 + 10 * 365 * DAY
    assert {job.id for job in (await store.claim(Claim("w", ("q",), 10, LEASE), later)).jobs} == {job_id(3), job_id(4)}


async def test_a_job_completed_in_a_transaction_that_lasts_makes_room_when_it_commits(store: PostgresBackend) -> None:
    assert await store.policies.save(Policy(queue="q", tenant_running=1), T0)
    await store.insert([row(1, group="g"), row(2, group="g")], T0)
    [job] = (await store.claim(Claim("w", ("q",), 10, LEASE), T0)).jobs
    with psycopg.connect(server().url()) as connection:
        joined = store.tx.join(connection)
        assert joined.blocks
        assert drive(joined.complete(done(job)))
        async with asyncio.timeout(60):
            assert (await store.claim(Claim("w", ("q",), 10, LEASE), T0)).jobs == []
        connection.commit()
    [other] = (await store.claim(Claim("w", ("q",), 10, LEASE), T0 + 10 * 365 * DAY)).jobs
    assert other.id == job_id(2)


# -- depth


async def test_a_job_that_does_not_fit_is_told_in_a_transaction_of_the_caller_s_own(store: PostgresBackend) -> None:
    assert await store.policies.save(Policy(queue="q", depth=1), T0)
    with psycopg.connect(server().url()) as connection:
        statuses = bound_insert(connection, store, row(1), row(2))
        connection.commit()
    assert statuses == [InsertStatus.NEW, InsertStatus.FULL]


async def test_from_sql_it_is_an_error_that_says_so(store: PostgresBackend) -> None:
    assert await store.policies.save(Policy(queue="q", depth=1), T0)
    call = f"SELECT status FROM {SCHEMA}.enqueue_v1(%s)".encode()
    with psycopg.connect(server().url(), autocommit=True) as connection:
        assert connection.execute(call, ('{"task": "t", "queue": "q", "group": "g"}',)).fetchall() == [("new",)]
        with pytest.raises(psycopg.Error, match='job 1: as many jobs wait as queue "q"') as caught:
            connection.execute(call, ('{"task": "t", "queue": "q"}',))
        assert caught.value.sqlstate == "LL002"
        with pytest.raises(psycopg.Error, match="group: expected text, got 5"):
            connection.execute(call, ('{"task": "t", "group": 5}',))


async def test_much_at_once_keeps_to_the_rules_too(store: PostgresBackend) -> None:
    blob = {"blob": bytes(300_000)}
    assert await store.policies.save(Policy(queue="q", depth=5), T0)
    answers = await store.insert([replace(row(n), cells=blob) for n in range(8)], T0)
    assert [one.status.value for one in answers] == ["new"] * 5 + ["full"] * 3
    await store.insert([replace(row(n, queue="r", group="g"), cells=blob) for n in range(10, 18)], T0)
    assert len((await store.claim(Claim("w", ("r",), 10, LEASE), T0)).jobs) == 1


async def test_counters_that_have_piled_up_are_added_up_by_who_reads_the_depth(store: PostgresBackend) -> None:
    assert await store.policies.save(Policy(queue=STORE, depth=10_000), T0)
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute(f"INSERT INTO {SCHEMA}.deltas SELECT 1, 0, 1, 0 FROM generate_series(1, 5000)".encode())
        await store.insert([row(1)], T0)
        assert connection.execute(f"SELECT count(*) < 10 FROM {SCHEMA}.deltas".encode()).fetchall() == [(True,)]


# -- nothing is left behind


async def test_what_served_turns_and_groups_goes_with_the_jobs(store: PostgresBackend) -> None:
    assert await store.policies.save(Policy(queue="q", tenant_workers=5, tenant_batch=2), T0)
    rows = [row(n, tenant=f"t{n % 7}", task=f"k{n % 3}", priority=n % 2) for n in range(40)]
    rows += [row(n, tenant=f"t{n % 7}", group=f"g{n % 5}") for n in range(40, 60)]
    await store.insert(rows, T0)
    await store.alter(Selector(ids=[job_id(3), job_id(41)]), Cancel(), T0)
    while jobs := (await store.claim(Claim("w", ("q",), 9, LEASE), T0)).jobs:
        await store.finish([done(job) for job in jobs], T0)
    await store.sweep(SweepClause(target=SweepTarget.COMPLETED, max_count=0), T0 + 2 * DAY)
    await store.sweep(SweepClause(target=SweepTarget.TENANTS), T0 + 2 * DAY)
    assert left() == {}
    [state] = await store.policies.find(["q"], T0)
    assert state.governed


async def test_a_pause_that_is_over_leaves_nothing_behind(store: PostgresBackend) -> None:
    await store.policies.pause(QueuePause("q", tenant="a", lasts=SECOND), T0)
    await store.policies.pause(QueuePause("q", task="t", lasts=SECOND), T0)
    await store.sweep(SweepClause(target=SweepTarget.TENANTS), T0 + SECOND)
    with psycopg.connect(server().url(), autocommit=True) as connection:
        for table in ("tenant_rules", "task_rules"):
            assert connection.execute(f"SELECT count(*) FROM {SCHEMA}.{table}".encode()).fetchall() == [(0,)]


# -- many


async def test_what_waited_before_there_were_rules_comes_into_turns_bit_by_bit(store: PostgresBackend) -> None:
    for start in range(0, 6_000, 1_000):
        await store.insert([row(n, tenant=f"t{n % 2}") for n in range(start, start + 1_000)], T0)
    assert await store.policies.save(Policy(queue="q", tenant_workers=5, tenant_batch=10), T0)
    seen: set[bytes] = set()
    for _ in range(6):
        jobs = (await store.claim(Claim("w", ("q",), 1_000, LEASE), T0)).jobs
        assert len(jobs) == 1_000
        assert abs(sum(job.tenant == "t0" for job in jobs) - 500) <= 10
        seen |= {job.id for job in jobs}
    assert len(seen) == 6_000


async def test_a_group_of_many_is_called_one_by_one_by_many(store: PostgresBackend) -> None:
    await store.insert([row(n, group=f"g{n % 4}") for n in range(200)], T0)
    order: dict[str | None, list[bytes]] = {}

    async def work(holder: str) -> None:
        while jobs := (await store.claim(Claim(holder, ("q",), 2, LEASE), T0)).jobs:
            for job in jobs:
                order.setdefault(job.group, []).append(job.id)
            await store.finish([done(job, holder) for job in jobs], T0)

    while sum(map(len, order.values())) < 200:
        async with asyncio.TaskGroup() as group:
            for n in range(4):
                group.create_task(work(f"w{n}"))
    assert all(ids == sorted(ids) and len(ids) == 50 for ids in order.values())


# -- groups and turns at once


async def test_a_job_that_is_sent_back_before_it_came_into_turns_is_not_lost(store: PostgresBackend) -> None:
    for start in range(0, 5_000, 1_000):
        await store.insert([row(n, tenant="bulk") for n in range(start, start + 1_000)], T0)
    await store.insert([row(9_001, tenant="x", group="g", priority=5)], T0)
    assert await store.policies.save(Policy(queue="q", tenant_running=100_000), T0)
    await store.insert([row(9_000, tenant="x", group="g", priority=5, run_at=T0 - 10)], T0)
    seen: list[bytes] = []
    while jobs := (await store.claim(Claim("w", ("q",), 1_000, LEASE), T0)).jobs:
        seen += [job.id for job in jobs]
        await store.finish([done(job) for job in jobs], T0)
    assert len(seen) == 5_002
    assert {job_id(9_000), job_id(9_001)} <= set(seen)


async def test_a_count_that_is_too_low_hides_no_job(store: PostgresBackend) -> None:
    assert await store.policies.save(Policy(queue="q", tenant_workers=5, tenant_batch=2), T0)
    await store.insert([row(n, tenant="a") for n in range(6)], T0)
    await store.policies.tenants("q", at=T0)
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute(f"UPDATE {SCHEMA}.tenants SET jobs = 1".encode())
    seen: list[bytes] = []
    while jobs := (await store.claim(Claim("w", ("q",), 10, LEASE), T0)).jobs:
        seen += [job.id for job in jobs]
        await store.finish([done(job) for job in jobs], T0)
    assert len(seen) == 6


async def test_who_had_a_turn_within_a_batch_wakes_as_in_the_model(store: PostgresBackend) -> None:
    model = MemoryBackend()
    await model.open()
    answers = []
    for one in (store, model):
        await one.policies.pause(QueuePause("q", tenant="a", lasts=6 * SECOND), T0)
        rows = [row(9, tenant="a", group="g"), row(3, tenant="a", delay=3 * SECOND), row(5, tenant="b", group="g")]
        await one.insert(rows, T0)
        answers.append(await one.claim(Claim("w", ("q",), 10, LEASE), T0))
    assert answers[0] == answers[1]


# -- marks


async def test_a_claim_that_sees_the_past_hides_no_tenant_from_the_next(store: PostgresBackend) -> None:
    """Behind a pooler, a transaction may be whatever the database makes of it."""
    assert await store.policies.save(Policy(queue="q", tenant_batch=10), T0)
    assert (await store.claim(Claim("w", ("q",), 10, LEASE), T0)).jobs == []
    with psycopg.connect(server().url(), options=f"-c search_path={SCHEMA}") as past:
        past.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        past.execute("SELECT 1 FROM queues")
        await store.insert([row(1, tenant="a", run_at=T0 + 5)], T0 + 5)
        await store.policies.tenants("q", at=T0 + 6)
        seen = past.execute(
            "SELECT id FROM claim_v1(%s, 'v', '{q}', 10, %s, 0::smallint, NULL, 1000000, true) WHERE id IS NOT NULL",
            (T0 + 10, LEASE),
        )
        assert seen.fetchall() == []
    claimed = await store.claim(Claim("w", ("q",), 10, LEASE), T0 + 20)
    assert [job.id for job in claimed.jobs] == [job_id(1)]


# -- nobody waits for another who has a group in hand


@contextmanager
def in_hand(*groups: str) -> Iterator[None]:
    """Somebody is busy with these groups."""
    with psycopg.connect(server().url(), options=f"-c search_path={SCHEMA}") as connection:
        found = connection.execute(
            "SELECT lock_groups(array_agg(gid_of(qid, n.name))) FROM all_queues, unnest(%s::text[]) AS n (name)",
            (list(groups),),
        )  # fmt: skip
        assert found.fetchall() == [([],)]
        yield


async def until_stuck(connection: psycopg.Connection[Any], task: asyncio.Task[Any]) -> None:
    """Somebody waits for a lock."""
    async with asyncio.timeout(60):
        while not task.done():
            if connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall():
                return
            await asyncio.sleep(0.01)


async def test_a_claim_does_not_wait_for_groups_that_somebody_has_in_hand(store: PostgresBackend) -> None:
    with psycopg.connect(server().url(), options=f"-c search_path={SCHEMA}") as connection:
        bound_insert(connection, store, row(1, group="g"))
    with in_hand("g"):
        async with asyncio.timeout(60):
            claimed = await store.claim(Claim("w", ("q",), 10, LEASE), T0)
        assert claimed.jobs == []
        assert claimed.next_in is not None
        assert claimed.next_in < SECOND
    later = T0 + 10 * 365 * DAY
    assert len((await store.claim(Claim("w", ("q",), 10, LEASE), later)).jobs) == 1


async def test_an_insert_does_not_wait_for_groups_that_somebody_has_in_hand(store: PostgresBackend) -> None:
    await store.insert([row(1)], T0)
    with in_hand("g", "h"):
        async with asyncio.timeout(60):
            await store.insert([row(2, group="h"), row(3, group="g"), row(4, group="i")], T0)
        first = await store.claim(Claim("w", ("q",), 10, LEASE), T0)
        assert [job.id for job in first.jobs] == [job_id(1), job_id(4)]
        assert first.next_in == 0
    claimed = await store.claim(Claim("w", ("q",), 10, LEASE), T0)
    assert [job.id for job in claimed.jobs] == [job_id(2), job_id(3)]


async def test_groups_that_somebody_has_in_hand_hold_up_hardly_any_others(store: PostgresBackend) -> None:
    """They share locks, but there are thousands of these."""
    await store.insert([row(1)], T0)
    with in_hand(*[f"theirs {n}" for n in range(5)]):
        await store.insert([row(n, group=f"g{n}") for n in range(2, 202)], T0)
        claimed = await store.claim(Claim("w", ("q",), 500, LEASE), T0)
    assert len(claimed.jobs) >= 199


async def test_an_end_does_not_wait_for_groups_that_somebody_has_in_hand(store: PostgresBackend) -> None:
    await store.insert([row(n, group="gh"[n % 2]) for n in range(4)], T0)
    jobs = (await store.claim(Claim("w", ("q",), 10, LEASE), T0)).jobs
    settled = [replace(done(jobs[0]), spawn=[row(9, group="i")]), done(jobs[1])]
    with in_hand("g", "i"):
        async with asyncio.timeout(60):
            assert await store.finish(settled, T0) == [JobState.COMPLETED] * 2
        assert [job.id for job in (await store.claim(Claim("w", ("q",), 10, LEASE), T0)).jobs] == [job_id(3)]
    found = (await store.claim(Claim("w", ("q",), 10, LEASE), T0)).jobs
    assert [job.id for job in found] == [job_id(2), job_id(9)]


async def test_producers_come_to_groups_in_any_order(store: PostgresBackend) -> None:
    numbers = iter(range(10_000))
    groups = [f"g{n}" for n in range(100)]

    async def produce(some: list[str]) -> None:
        for _ in range(10):
            await store.insert([row(next(numbers), group=group) for group in some], T0)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(produce(groups))
        tasks.create_task(produce(groups[::-1]))
    found: list[Leased] = []
    while len(found) < 100:
        found += (await store.claim(Claim("w", ("q",), 200, LEASE), T0)).jobs
    assert {job.group for job in found} == set(groups)
    while not (
        claimed := await store.finish_and_claim([done(job) for job in found], Claim("w", ("q",), 200, LEASE), T0)
    )[1].jobs:
        found = []
    assert len(claimed[1].jobs) <= 100


async def test_workers_that_pass_groups_to_each_other_never_wait_in_a_ring(store: PostgresBackend) -> None:
    await store.insert([row(n, group=f"g{n}") for n in range(60)], T0)
    numbers = iter(range(1_000, 10_000))
    draw = random.Random(5)

    async def work(holder: str) -> None:
        jobs: list[Leased] = []
        for _ in range(20):
            batch = [
                replace(done(job, holder), spawn=[row(next(numbers), group=f"g{draw.randrange(60)}")]) for job in jobs
            ]
            _, claimed = await store.finish_and_claim(batch, Claim(holder, ("q",), 8, LEASE))
            jobs = list(claimed.jobs)

    async with asyncio.TaskGroup() as group:
        for n in range(6):
            group.create_task(work(f"w{n}"))


# -- news


NEWS = f"""
    INSERT INTO {SCHEMA}.news (qid, kind, tids, jobs, ats, tenants)
    SELECT qid, 1, tids, '{{0}}', ats, tenants FROM {SCHEMA}.news, generate_series(1, 20000)
"""


async def test_very_much_news_is_heard_part_by_part(store: PostgresBackend) -> None:
    assert await store.policies.save(Policy(queue="q", tenant_running=5), T0)
    await store.insert([row(1, tenant="a", run_at=T0 + DAY)], T0)
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute(NEWS.encode())
    await store.insert([row(2, tenant="b")], T0)
    jobs: list[Leased] = []
    for _ in range(200):
        claimed = await store.claim(Claim("w", ("q",), 10, LEASE), T0)
        jobs += claimed.jobs
        if claimed.next_in != 0:
            break
    assert [job.id for job in jobs] == [job_id(2)]
    assert claimed.next_in == DAY
    with psycopg.connect(server().url(), autocommit=True) as connection:
        await store.insert([row(3, tenant="c")], T0)
        connection.execute(NEWS.encode())
    assert [one.tenant for one in await store.policies.tenants("q", at=T0)] == ["a", "b", "c"]


async def test_news_that_comes_while_a_claim_listens_is_not_taken_for_another_kind(store: PostgresBackend) -> None:
    assert await store.policies.save(Policy(queue="q", tenant_running=5), T0)
    await store.insert([row(1, tenant="a")], T0)
    [job] = (await store.claim(Claim("w", ("q",), 10, LEASE), T0)).jobs
    await store.insert([row(2, tenant="a")], T0)
    seen = "IF v_first = 1 AND v_last = 1 THEN"
    with psycopg.connect(server().url(), autocommit=True) as connection:
        [[right]] = connection.execute(f"SELECT pg_get_functiondef('{SCHEMA}.hear'::regproc)".encode())
        assert right.count(seen) == 1
        connection.execute(right.replace(seen, f"PERFORM pg_advisory_xact_lock(4711); {seen}").encode())
        try:
            connection.execute("SELECT pg_advisory_lock(4711)")
            task = asyncio.create_task(store.claim(Claim("w", ("q",), 10, LEASE), T0))
            await until_stuck(connection, task)
            assert await store.finish([done(job)], T0) == [JobState.COMPLETED]
            connection.execute("SELECT pg_advisory_unlock(4711)")
            assert [one.id for one in (await task).jobs] == [job_id(2)]
        finally:
            connection.execute(right.encode())
    [state] = await store.policies.tenants("q", at=T0)
    assert (state.waiting, state.running) == (0, 1)


async def test_a_claim_comes_back_at_once_while_jobs_are_still_to_come_into_turns(store: PostgresBackend) -> None:
    for start in range(0, 1_500, 500):
        await store.insert([row(n, tenant="heavy") for n in range(start, start + 500)], T0)
    await store.insert([row(9_999, tenant="light", priority=1)], T0)
    await store.policies.pause(QueuePause("q", tenant="heavy"), T0)
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute(f"UPDATE {SCHEMA}.ready SET lane = NULL".encode())
    first = await store.claim(Claim("w", ("q",), 10, LEASE), T0)
    assert (first.jobs, first.next_in) == ([], 0)
    assert [job.id for job in (await store.claim(Claim("w", ("q", "r"), 10, LEASE), T0)).jobs] == [job_id(9_999)]


# -- who is told


async def test_an_end_is_told_only_where_somebody_may_wait_for_it(store: PostgresBackend) -> None:
    for queue in "qr":
        assert await store.policies.save(Policy(queue=queue, rate=Rate(1, 1_000)))
        await store.insert(
            [row(n, queue=queue, tenant=f"t{n % 2}") for n in range(1 + 10 * ord(queue), 4 + 10 * ord(queue))]
        )
    await store.policies.limit(TenantLimit("r", "t0", 5))
    jobs = [(await store.claim(Claim("w", (queue,), 10, LEASE))).jobs for queue in "qr"]
    listener = PostgresBackend(server().url(), schema=SCHEMA)
    await listener.open()
    assert listener.hints is not None
    try:
        async with listener.hints.listen(["queue:q", "queue:r"]) as hints:
            await listener.finish([done(job) for job in jobs[0]])
            await listener.finish([done(job) for job in jobs[1]])
            async with asyncio.timeout(60):
                async for hint in hints:
                    assert hint.topic == "queue:r"
                    break
    finally:
        await listener.close()


async def test_a_claim_from_a_paused_queue_leaves_the_groups_of_others_alone(store: PostgresBackend) -> None:
    await store.insert([row(1, queue="p")], T0)
    await store.policies.pause(QueuePause("p"), T0)
    with psycopg.connect(server().url()) as connection:
        bound_insert(connection, store, row(2, queue="q", group="g"), row(3, queue="p", group="g"))
        connection.commit()
    await store.claim(Claim("w", ("p",), 1, LEASE), T0)
    assert left()["looks"] == 2


async def test_the_counters_of_the_depth_are_read_at_one_instant(store: PostgresBackend) -> None:
    assert await store.policies.save(Policy(queue="q", depth=10), T0)
    await store.insert([row(n) for n in range(6)], T0)
    with psycopg.connect(server().url()) as connection:
        connection.execute(f"SELECT {SCHEMA}.fold_deltas()".encode())
        connection.execute(f"LOCK TABLE {SCHEMA}.totals IN ACCESS EXCLUSIVE MODE".encode())
        task = asyncio.create_task(store.insert([row(n) for n in range(6, 8)], T0))
        await until_stuck(connection, task)
        connection.commit()
        assert [one.status for one in await task] == [InsertStatus.NEW] * 2


@pytest.mark.parametrize("ends", [False, True])
async def test_what_a_claim_by_turns_tells_is_on_the_disk(store: PostgresBackend, ends: bool) -> None:
    """Though nobody waits for the disk as long as it keeps others from their turns."""
    assert await store.policies.save(Policy(queue="q", tenant_running=1_000), T0)
    await store.insert([row(n, tenant=f"t{n}") for n in range(200)], T0)
    claimed = await store.claim(Claim("w", ("q",), 100, LEASE), T0)
    with psycopg.connect(server().url(), autocommit=True) as connection:
        [[before]] = connection.execute("SELECT pg_current_wal_insert_lsn()")
        if ends:
            await store.finish_and_claim([done(job) for job in claimed.jobs], Claim("w", ("empty", "q"), 1, LEASE), T0)
        else:
            assert len((await store.claim(Claim("w", ("q",), 100, LEASE), T0)).jobs) == 100
        [[flushed]] = connection.execute("SELECT pg_current_wal_flush_lsn() - %s::pg_lsn", (before,))
    assert flushed > 5_000


def places(of: str = "true") -> list[Any]:
    """Where the rows of tenants lie: whoever writes one moves it."""
    with psycopg.connect(server().url(), options=f"-c search_path={SCHEMA}") as connection:
        return connection.execute(f"SELECT tenant, ctid::text FROM tenants WHERE {of} ORDER BY 1".encode()).fetchall()


async def crowd(store: PostgresBackend, tenants: int, jobs: int = 1, **rules: Any) -> None:
    """Many tenants, all of which are at their limit of one."""
    assert await store.policies.save(Policy(queue="q", tenant_running=1, **rules), T0)
    each = [f"t{n:04}" for n in range(tenants)]
    numbers = iter(range(tenants * (jobs + 1)))
    for start in range(0, tenants, 1_000):
        some = each[start : start + 1_000]
        await store.insert([row(next(numbers), tenant=tenant) for tenant in some for _ in range(jobs + 1)], T0)
    leased = 0
    while leased < tenants:
        leased += len((await store.claim(Claim("w", ("q",), 500, LEASE), T0)).jobs)
    claimed = await store.claim(Claim("w", ("q",), 500, LEASE), T0)
    while claimed.next_in is not None:
        claimed = await store.claim(Claim("w", ("q",), 500, LEASE), T0)
    assert claimed.jobs == []


async def test_a_rule_for_one_tenant_touches_no_other(store: PostgresBackend) -> None:
    await crowd(store, 50)
    before = places("tenant <> 't0007'")
    await store.policies.pause(QueuePause("q", tenant="t0007"), T0)
    await store.policies.pause(QueuePause("q", tenant="t0007", paused=False), T0)
    await store.policies.limit(TenantLimit("q", "t0007", 2), T0)
    assert places("tenant <> 't0007'") == before
    assert [job.tenant for job in (await store.claim(Claim("w", ("q",), 10, LEASE), T0)).jobs] == ["t0007"]


async def test_rules_for_all_wake_a_bounded_number_at_once(store: PostgresBackend) -> None:
    await crowd(store, 2_500)
    before = dict(places())
    assert await store.policies.save(Policy(queue="q", tenant_running=2, version=1), T0)
    moved = sum(place != before[tenant] for tenant, place in places())
    assert 0 < moved <= 1_000
    found: set[str] = set()
    for _ in range(100):
        claimed = await store.claim(Claim("w", ("q",), 500, LEASE), T0)
        found |= {job.tenant for job in claimed.jobs}
        if claimed.next_in is None and not claimed.jobs:
            break
    assert len(found) == 2_500


async def test_a_look_at_tenants_waits_for_nobody_and_changes_nothing(store: PostgresBackend) -> None:
    assert await store.policies.save(Policy(queue="q", tenant_running=5), T0)
    await store.insert([row(n, tenant=tenant) for n, tenant in enumerate("aabc")], T0)
    [job, _] = (await store.claim(Claim("w", ("q",), 2, LEASE), T0)).jobs
    await store.finish([done(job)], T0)
    await store.insert([row(9, tenant="d")], T0)
    with psycopg.connect(server().url(), options=f"-c search_path={SCHEMA}") as connection:
        news = "SELECT count(*) FROM news"
        before = connection.execute(news).fetchall()
        connection.execute("SELECT 1 FROM turns FOR UPDATE")
        async with asyncio.timeout(60):
            found = await store.policies.tenants("q", at=T0)
        assert connection.execute(news).fetchall() == before
    assert {one.tenant: (one.waiting, one.running) for one in found} == {
        "a": (0, 1), "b": (1, 0), "c": (1, 0), "d": (1, 0),
    }  # fmt: skip


async def test_a_long_page_of_tenants_is_read_in_parts(store: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await store.policies.save(Policy(queue="q", tenant_running=5), T0)
    names = sorted(f"t{n}" for n in range(1_300))
    for first in range(0, 1_300, 650):
        await store.insert([row(first + n, tenant=name) for n, name in enumerate(names[first : first + 650])], T0)
    answered: list[int] = []
    ask = store.policies._call

    async def counted(*args: Any) -> Any:
        rows = await ask(*args)
        answered.append(len(rows))
        return rows

    monkeypatch.setattr(store.policies, "_call", counted)
    assert [one.tenant for one in await store.policies.tenants("q", limit=1_200, at=T0)] == names[:1_200]
    assert [one.tenant for one in await store.policies.tenants("q", names, names[9], 5_000, at=T0)] == names[10:]
    assert [one.tenant for one in await store.policies.tenants("q", after=names[1_290], at=T0)] == names[1_291:]
    assert max(answered) <= 500
    assert await store.policies.tenants("q", limit=0, at=T0) == []


async def test_news_of_many_comes_in_small_parts(store: PostgresBackend) -> None:
    assert await store.policies.save(Policy(queue="q", tenant_running=5), T0)
    await store.insert([row(n, tenant=f"t{n}") for n in range(1_000)], T0)
    with psycopg.connect(server().url(), options=f"-c search_path={SCHEMA}") as connection:
        [[most, jobs]] = connection.execute("SELECT max(cardinality(tids)), sum(cardinality(tids)) FROM news")
    assert (most, jobs) == (250, 1_000)


@pytest.mark.parametrize("how", ["run_at", "delay"])
async def test_jobs_of_a_group_that_come_in_the_wrong_order_are_stored_in_short_steps(
    store: PostgresBackend, how: str
) -> None:
    """Each calls its group anew, and sends the job back that was called."""
    assert await store.policies.save(Policy(queue="q", tenant_batch=1), T0)
    first = T0 if how == "run_at" else DAY
    await store.insert([row(n, group="g", **{how: first - n}) for n in range(900)], T0)
    with psycopg.connect(server().url(), options=f"-c search_path={SCHEMA}") as connection:
        [[most, told]] = connection.execute(
            "SELECT max(n.told), sum(n.told) FROM (SELECT count(*) AS told FROM news GROUP BY xmin::text) AS n"
        )
    assert told > 900
    assert most <= 250
    assert (await store.policies.group("q", "g")).called == (job_id(899),)


async def test_expired_jobs_of_many_tenants_are_cancelled_together(store: PostgresBackend) -> None:
    assert await store.policies.save(Policy(queue="q", tenant_batch=1), T0)
    for first in range(0, 1_200, 600):
        await store.insert([row(n, tenant=f"t{n % 300}", expires=SECOND) for n in range(first, first + 600)], T0)
    await store.insert([row(5_000, tenant="t7")], T0)
    with psycopg.connect(server().url(), autocommit=True, options=f"-c search_path={SCHEMA}") as connection:
        while connection.execute("SELECT count(*) FROM tenants WHERE awake").fetchone() != (300,):
            await store.claim(Claim("w", ("q",), 0, LEASE), T0)
        claimed = await store.claim(Claim("w", ("q",), 1_000, LEASE), T0 + SECOND)
        assert len(claimed.jobs) <= 1
        assert 500 < len(claimed.expired) <= 1_000
        [[told]] = connection.execute("SELECT count(*) FROM news WHERE kind = 3").fetchall()
        assert told <= 3
    jobs, expired = [*claimed.jobs], [*claimed.expired]
    while claimed.next_in == 0:
        claimed = await store.claim(Claim("w", ("q",), 1_000, LEASE), T0 + SECOND)
        jobs += claimed.jobs
        expired += claimed.expired
    assert [job.id for job in jobs] == [job_id(5_000)]
    assert len({job.id for job in expired}) == len(expired) == 1_200
