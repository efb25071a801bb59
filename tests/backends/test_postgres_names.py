"""Names of queues that nobody uses any more are forgotten, under any load, and never in somebody's hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from headrace.backends.postgres import PostgresBackend
from headrace.seam.records import Claim, InsertStatus, JobKey, Row, Settlement, SweepClause, SweepTarget
from headrace.types import JobState
from tests.postgres import server

Connection = psycopg.Connection[tuple[object, ...]]

_DAY = 86_400_000_000


@pytest.fixture
def connection() -> Iterator[Connection]:
    with psycopg.connect(server().url(), autocommit=True, options="-c search_path=names") as connection:
        yield connection
        connection.execute("DROP SCHEMA IF EXISTS names CASCADE")


@pytest.fixture
async def store(connection: Connection) -> AsyncIterator[PostgresBackend]:
    backend = PostgresBackend(server().url(), schema="names")
    await backend.open()
    yield backend
    await backend.close()


def row(number: int, queue: str = "q", **more: object) -> Row:
    return Row(id=number.to_bytes(16, "big"), queue=queue, task="t", cells={}, **more)  # type: ignore[arg-type]


async def pass_through(store: PostgresBackend, rows: list[Row], *, ttl: int = 0, keep: bool = False) -> None:
    """Store jobs, run them, and leave nothing of them."""
    await store.insert(rows)
    jobs = (await store.claim(Claim("h", tuple({row.queue for row in rows}), 1_000, _DAY))).jobs
    done = [
        Settlement(job.id, job.epoch, "h", JobState.COMPLETED, result=b"", result_ttl=ttl, keep=keep) for job in jobs
    ]  # fmt: skip
    assert await store.finish(done) == [JobState.COMPLETED] * len(rows)


def known(connection: Connection) -> set[object]:
    return {name for (name,) in connection.execute("SELECT name FROM queues")}


def age(connection: Connection, hours: int = 25) -> None:
    """As if so much time had passed since the queues were used."""
    connection.execute("SELECT fold_deltas()")
    connection.execute("UPDATE queues SET used_at = used_at - %s * 3600000000::bigint", (hours,))


async def forget(store: PostgresBackend) -> None:
    """What a run does."""
    for _ in range(3):
        await store._call("forget_queues", None)


async def test_a_name_is_kept_for_a_day_after_its_last_use(store: PostgresBackend, connection: Connection) -> None:
    await pass_through(store, [row(1)])
    await forget(store)
    age(connection, 23)
    await forget(store)
    assert known(connection) == {"q"}
    await pass_through(store, [row(2)])
    age(connection, 23)
    await forget(store)
    assert known(connection) == {"q"}, "used in the last day, though nothing of it is left"
    age(connection, 2)
    await forget(store)
    assert known(connection) == set()
    assert connection.execute("SELECT * FROM totals WHERE qid <> -1 OR jobs <> 0").fetchall() == []
    await pass_through(store, [row(3)])


async def test_a_name_that_something_refers_to_is_kept(store: PostgresBackend, connection: Connection) -> None:
    await store.insert([row(1, "waits")])
    await pass_through(store, [row(2, "kept")], keep=True)
    await pass_through(store, [row(3, "keyed", key="k")], ttl=_DAY, keep=True)
    connection.execute("INSERT INTO queues (qid, name, paused_until) VALUES (-1, 'paused', 9007199254740992)")
    connection.execute("INSERT INTO queues (qid, name, governed) VALUES (-2, 'governed', true)")
    age(connection)
    await forget(store)
    assert known(connection) == {"waits", "kept", "keyed", "paused", "governed"}


async def test_names_are_forgotten_while_others_are_used(store: PostgresBackend, connection: Connection) -> None:
    """At no instant nobody stores a job: there is always a transaction that has named a queue."""
    await pass_through(store, [row(n, f"old {n}") for n in range(50)])
    age(connection)
    with (
        psycopg.connect(server().url(), options="-c search_path=names") as odd,
        psycopg.connect(server().url(), options="-c search_path=names") as even,
    ):
        odd.execute("SELECT queue_ids(ARRAY['used'])")
        for step in range(6):
            current, other = (even, odd) if step % 2 == 0 else (odd, even)
            await store._call("forget_queues", None)
            other.commit()
            current.execute("SELECT queue_ids(ARRAY['used'])")
            other.execute("SELECT 1")
    assert known(connection) == {"used"}


async def test_a_transaction_that_named_it_before_is_waited_for(store: PostgresBackend, connection: Connection) -> None:
    await pass_through(store, [row(1)])
    age(connection)
    with psycopg.connect(server().url(), options="-c search_path=names") as early:
        [[qid]] = early.execute("SELECT queue_ids(ARRAY['q'])").fetchall()
        for _ in range(3):
            await forget(store)
        assert known(connection) == {"q"}
        early.execute("INSERT INTO deltas (qid, state, jobs) VALUES (%s, 0, 1)", (qid[0],))
    await forget(store)
    assert known(connection) == {"q"}, "it was used"
    assert connection.execute("SELECT leaving FROM queues").fetchall() == [(False,)]


async def test_a_transaction_that_names_it_after_the_mark_keeps_it(
    store: PostgresBackend, connection: Connection
) -> None:
    await pass_through(store, [row(1)])
    age(connection)
    for _ in range(2):
        await store._call("forget_queues", None)
    assert connection.execute("SELECT leaving FROM queues").fetchall() == [(True,)]
    with psycopg.connect(server().url(), options="-c search_path=names") as late:
        [[qid]] = late.execute("SELECT queue_ids(ARRAY['q'])").fetchall()
        await asyncio.wait_for(store.insert([row(2)]), 30)
        await store._call("forget_queues", None)
        assert known(connection) == {"q"}
        assert connection.execute("SELECT qid FROM queues").fetchall() == [(qid[0],)]


async def test_a_name_that_is_being_forgotten_is_made_again(store: PostgresBackend, connection: Connection) -> None:
    await pass_through(store, [row(1)])
    age(connection)
    for _ in range(2):
        await store._call("forget_queues", None)
    with psycopg.connect(server().url(), options="-c search_path=names") as forgetting:
        forgetting.execute("SELECT forget_queues_v1(NULL)")
        storing = asyncio.create_task(store.insert([row(2)]))
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%insert_v1%'"
        async with asyncio.timeout(30):
            while connection.execute(waiting).fetchone() == (0,):
                await asyncio.sleep(0.01)
    [answer] = await storing
    assert answer.status is InsertStatus.NEW
    assert known(connection) == {"q"}
    assert len((await store.claim(Claim("h", ("q",), 10, _DAY))).jobs) == 1


async def test_many_names_go_in_bounded_steps(store: PostgresBackend, connection: Connection) -> None:
    connection.execute(
        "INSERT INTO queues (qid, name, used_at) SELECT n, 'old ' || n, 0 FROM generate_series(1, 2500) AS n"
    )
    left = []
    while known(connection):
        await forget(store)
        left.append(len(known(connection)))
    assert left == [1_500, 500, 0]
    assert await store.tidy([SweepClause(target=SweepTarget.COMPLETED)]) == {}
    assert await store.fetch([JobKey("q", "k")]) == [None]


async def test_a_name_more_costs_a_few_pages(store: PostgresBackend, connection: Connection) -> None:
    """However many counts were added up a moment ago: they lie about until a vacuum comes."""
    many = 1_500
    await pass_through(store, [row(number, f"q{number}") for number in range(many)][:1_000])
    await pass_through(store, [row(number, f"q{number}") for number in range(1_000, many)])
    age(connection)
    spent = []
    while known(connection):
        [[told]] = connection.execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT forget_queues_v1(NULL)")
        plan = told[0]["Plan"]  # type: ignore[index]
        spent.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    assert sum(spent) < 40 * many, f"pages of each step for {many} names: {spent}"


# -- two names that have the same number by themselves

_ENQUEUE = "SELECT * FROM enqueue_v1(jsonb_build_object('queue', %s::text, 'task', 't'))"


@pytest.fixture
def colliding(store: PostgresBackend, connection: Connection) -> None:
    """Every name has the same number at first; and a busy machine has its time."""
    connection.execute(
        "CREATE OR REPLACE FUNCTION queue_number(p_name text, p_try integer) RETURNS integer LANGUAGE sql STABLE AS"
        " 'SELECT p_try + 1'"
    )
    connection.execute("ALTER FUNCTION take_number SET lock_timeout = '60s'")


@pytest.fixture
def open_ones(colliding: None) -> Iterator[tuple[Connection, Connection]]:
    options = "-c search_path=names"
    with (
        psycopg.connect(server().url(), options=options) as one,
        psycopg.connect(server().url(), options=options) as two,
    ):
        yield one, two


async def waits(connection: Connection, pid: int) -> None:
    """Until this session waits for another."""
    async with asyncio.timeout(60):
        while not connection.execute(
            "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'", (pid,)
        ).fetchall():
            await asyncio.sleep(0.01)


def numbers(connection: Connection) -> dict[object, object]:
    return {row[0]: row[1] for row in connection.execute("SELECT name, qid FROM all_queues")}


async def queues_of_jobs(store: PostgresBackend, names: tuple[str, ...]) -> dict[str, int]:
    return {name: len((await store.claim(Claim("h", (name,), 10, _DAY))).jobs) for name in names}


@pytest.mark.parametrize("first_ends", ["commit", "rollback"])
async def test_two_open_transactions_do_not_give_one_number_to_two_names(
    store: PostgresBackend, connection: Connection, open_ones: tuple[Connection, Connection], first_ends: str
) -> None:
    one, two = open_ones
    one.execute(_ENQUEUE, ("a",))
    second = asyncio.create_task(asyncio.to_thread(two.execute, _ENQUEUE, ("b",)))
    await waits(connection, two.info.backend_pid)
    getattr(one, first_ends)()
    await second
    two.commit()
    assert numbers(connection) == ({"a": 1, "b": 2} if first_ends == "commit" else {"b": 1})
    assert await queues_of_jobs(store, ("a", "b")) == {"a": int(first_ends == "commit"), "b": 1}


async def test_a_name_under_a_number_that_an_open_transaction_gives_away_is_refused(
    connection: Connection, open_ones: tuple[Connection, Connection]
) -> None:
    connection.execute("ALTER FUNCTION take_number SET lock_timeout = '50ms'")
    one, two = open_ones
    one.execute(_ENQUEUE, ("a",))
    with pytest.raises(psycopg.errors.SerializationFailure, match='queue "b": a transaction that is still open names'):
        await asyncio.to_thread(two.execute, _ENQUEUE, ("b",))
    one.commit()
    assert numbers(connection) == {"a": 1}


async def test_open_transactions_that_give_one_name_its_number_do_not_wait_for_each_other(
    store: PostgresBackend, connection: Connection, open_ones: tuple[Connection, Connection]
) -> None:
    one, two = open_ones
    for each in open_ones:
        each.execute("SET statement_timeout = '30s'")
        each.execute(_ENQUEUE, ("a",))
    two.commit()
    one.commit()
    assert numbers(connection) == {"a": 1}
    assert await queues_of_jobs(store, ("a",)) == {"a": 2}


@pytest.mark.parametrize("bound_ends", ["commit", "rollback"])
async def test_an_insert_of_its_own_sees_what_an_open_transaction_names(
    store: PostgresBackend, connection: Connection, open_ones: tuple[Connection, Connection], bound_ends: str
) -> None:
    one, _ = open_ones
    one.execute(_ENQUEUE, ("a",))
    inserting = asyncio.create_task(store.insert([row(1, "b")]))
    async with asyncio.timeout(60):
        while not connection.execute(
            "SELECT 1 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"
        ).fetchall():
            await asyncio.sleep(0.01)
    getattr(one, bound_ends)()
    await inserting
    assert numbers(connection) == ({"a": 1, "b": 2} if bound_ends == "commit" else {"b": 1})


async def test_an_open_transaction_sees_what_an_insert_has_named(
    store: PostgresBackend, connection: Connection, open_ones: tuple[Connection, Connection]
) -> None:
    """Also where it looks back at a time before that."""
    one, two = open_ones
    two.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    two.execute("SELECT 1 FROM queues")
    await store.insert([row(1, "a")])
    for each, name in ((one, "b"), (two, "c")):
        each.execute(_ENQUEUE, (name,))
        each.commit()
    assert sorted(map(str, numbers(connection).values())) == ["1", "2", "3"]
    assert await queues_of_jobs(store, ("a", "b", "c")) == {"a": 1, "b": 1, "c": 1}


async def test_a_number_is_free_again_once_its_name_is_forgotten(
    store: PostgresBackend, connection: Connection, colliding: None
) -> None:
    await pass_through(store, [row(1, "a")])
    age(connection)
    await forget(store)
    assert known(connection) == set()
    await store.insert([row(2, "b")])
    assert numbers(connection) == {"b": 1}
