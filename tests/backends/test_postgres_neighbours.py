"""What a role that is confined to one tenant can do to others on PostgreSQL in several steps, or through workers."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest

from headrace.backends.postgres import PostgresBackend
from headrace.core.headers import SLOT
from headrace.schedules.calendar import EveryRule
from headrace.schedules.plan import Definition, Misfire, Template
from headrace.seam.records import Claim
from headrace.seam.ticks import NewTick, Plan, Save, ScheduleSelector, TickOutcome
from headrace.testing.conformance.base import LEASE, SECOND, job_id, row
from tests.backends.test_postgres_hostile import (
    SCHEMA,
    SCRIPT,
    backend,
    call,
    enqueue,
    make,
    numbers,
    url,
)

DAY = 86_400 * SECOND


@pytest.fixture
async def store() -> AsyncIterator[PostgresBackend]:
    await make()
    owned = backend()
    await owned.open()
    yield owned
    await owned.close()


@asynccontextmanager
async def acme() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """The confined role in a transaction that it leaves open."""
    async with await psycopg.AsyncConnection.connect(url("hostile acme")) as connection:
        yield connection
        await connection.rollback()


def done(*statements: str) -> list[Any]:
    """What the confined role gets for these, one by one; an error's code if it is refused."""
    answers: list[Any] = []
    with psycopg.connect(url("hostile acme"), autocommit=True) as connection:
        for one in statements:
            try:
                answers.append(connection.execute(one.encode()).fetchall())
            except psycopg.Error as error:
                answers.append(error.sqlstate)
    return answers


def owned(statement: str, *parameters: Any) -> list[Any]:
    with psycopg.connect(url("hostile owner"), autocommit=True, options=f"-c search_path={SCHEMA}") as connection:
        return connection.execute(statement.encode(), parameters).fetchall()


def definition(interval: int = SECOND, **more: Any) -> str:
    """A schedule that fires every second, as SQL."""
    template = Template("t", {}, group=more.pop("group", None))
    packed = Definition(rule=EveryRule(interval, 0), template=template, **more).pack()
    return rf"'\x{packed.hex()}'::bytea"


# -- rights


def test_every_function_of_a_confined_role_is_tried() -> None:
    """Views are looked at by name."""
    asyncio.run(make())
    names = {name for [name] in owned("SELECT DISTINCT name FROM rights WHERE part LIKE 'confined %%'")}
    said = set(re.findall(rf"{SCHEMA}\.(\w+)", " ".join(one.text for one in SCRIPT)))
    assert names - said == set()


# -- groups


async def test_a_group_of_a_confined_role_is_its_tenant_s(store: PostgresBackend) -> None:
    """Two tenants that name a group alike do not wait for each other."""
    first = call("own_insert_v1", group_name="'ada'", run_at="1", p_names="'{grouped}'").text
    listed = enqueue(queue="grouped", group="bob", run_at="1970-01-02T00:00:00Z").text
    assert [len(answer) for answer in done(first, listed)] == [0, 1]
    theirs = [row(7_000 + n, queue="grouped", tenant="other", group=group) for n, group in enumerate(("ada", "bob"))]
    await store.insert(theirs)
    claimed = (await store.claim(Claim("w", ("grouped",), 10, LEASE))).jobs
    assert {one.id for one in claimed} >= {one.id for one in theirs}
    assert sorted(one.group or "" for one in claimed) == ["acme/ada", "acme/bob", "ada", "bob"]


async def test_a_confined_role_names_its_groups_as_it_made_them(store: PostgresBackend) -> None:
    confined = backend("hostile acme")
    await confined.open()
    long = "g" * 1024
    rows = [row(7_010 + n, queue="named", tenant="acme", group=group) for n, group in enumerate(("a/b", long))]
    await confined.insert(rows)
    found = await confined.fetch([one.id for one in rows])
    assert [one and one.group for one in found] == ["a/b", long]
    await confined.close()
    claimed = (await store.claim(Claim("w", ("named",), 10, LEASE))).jobs
    assert [one.group for one in claimed] == ["acme/a/b", f"acme/{long}"]


async def test_groups_of_schedules_are_the_tenant_s_too(store: PostgresBackend) -> None:
    """Whoever plans them. Where it changes one that somebody else made for its tenant, until that one does again."""
    uid = f"'{UUID(bytes=job_id(901))}'"
    saved = done(
        call("own_save_v1", name="'grouping'", definition=definition(group="ada")).text,
        call("own_save_v1", name="'own'", version="1", uid=uid, definition=definition(group="ada")).text,
    )
    assert saved == [[([1],)]] * 2

    async def fire(name: str, number: int) -> str | None:
        [mine] = await store.ticks.find(ScheduleSelector(names=[name]))
        fired = row(number, queue="scheduled", tenant="acme", group="ada")
        plan = Plan(mine.name, mine.uid, None, [NewTick(number, number, fired)])
        assert await store.ticks.plan([plan]) == [[TickOutcome.FIRED]]
        [found] = await store.fetch([fired.id])
        assert found is not None
        return found.group

    assert await fire("acme/grouping", 7_020) == "acme/ada"
    assert await fire("own", 7_021) == "acme/ada"
    [now] = await store.ticks.find(ScheduleSelector(names=["own"]))
    assert await store.ticks.save([Save(now, now.version)]) == [True]
    assert await fire("own", 7_022) == "ada"


# -- schedules


async def test_a_confined_role_starts_no_schedule_in_the_past(store: PostgresBackend) -> None:
    """What it says of the time to look counts from now on; a slot may stay where it is, but not go back."""
    endless = definition(misfire=Misfire.ALL, max_age=3650 * DAY)
    hour = "(extract(epoch FROM now()) * 1000000)::bigint - 3700000000"
    assert done(
        call("own_save_v1", name="'old'", slot="1", look_at="1", definition=endless).text,
        call("own_save_v1", name="'old'", slot=hour, look_at="1", definition=endless).text,
    ) == ["22023", "22023"]
    before = await store.now()
    assert done(call("own_save_v1", name="'new'", slot="7000000000000000", look_at="1", definition=endless).text) == [
        [([1],)]
    ]
    [saved] = await store.ticks.find(ScheduleSelector(names=["acme/new"]))
    assert saved.look_at is not None
    assert before <= saved.look_at <= await store.now()
    owned("UPDATE agenda SET slot = 500, look_at = 500 WHERE name = 'acme/new' RETURNING 1")
    uid = f"ARRAY['{UUID(bytes=saved.uid)}']::uuid[]"
    plan = {
        "p_names": "'{new}'", "p_uids": uid, "p_ticks": "'{0}'", "t_slots": "'{}'", "t_run_ats": "'{}'",
        "t_counts": "'{}'", "t_overlaps": "'{}'", "t_fires": "'{}'", "p_queues": "'{}'",
        "p_rows": f"'{{}}'::{SCHEMA}.job_row[]",
    }  # fmt: skip
    save = {"name": "'new'", "uid": uid[6:-9], "look_at": "1", "definition": endless}
    assert done(
        call("own_save_v1", slot="499", version="1", **save).text,
        call("own_plan_v1", p_slots="'{499}'", p_look_ats="'{1}'", p_versions="'{1}'", **plan).text,
        call("own_save_v1", slot="500", version="1", **save).text,
        call("own_plan_v1", p_slots="'{500}'", p_look_ats="'{1}'", p_versions="'{2}'", **plan).text,
    ) == ["22023", "22023", [([1],)], []]
    [saved] = await store.ticks.find(ScheduleSelector(names=["acme/new"]))
    assert saved.version == 3
    assert saved.slot == 500
    assert saved.look_at is not None
    assert before <= saved.look_at <= await store.now()


async def test_a_confined_role_plans_no_more_misses_than_it_fires(store: PostgresBackend) -> None:
    """The history is bounded for all together: whatever is entered there pushes out something else."""
    many = "ARRAY(SELECT n FROM generate_series(1, 1000) AS n)"
    ones, noughts = "array_fill(1, ARRAY[1000])", "array_fill(0, ARRAY[1000])::smallint[]"
    missed = call(
        "own_plan_v1",
        p_ticks="'{1000}'",
        t_slots=many,
        t_run_ats=many,
        t_counts=ones,
        t_overlaps=noughts,
        t_fires="array_fill(false, ARRAY[1000])",
        p_queues="'{}'",
        p_rows=f"'{{}}'::{SCHEMA}.job_row[]",
    )
    [uid] = [one.uid for one in await store.ticks.find(ScheduleSelector(names=["own"]))]
    ids = f"array_fill('{UUID(bytes=uid)}'::uuid, ARRAY[1000])"
    nulls = "array_fill(NULL::bigint, ARRAY[1000])"
    one_by_one = call(
        "own_plan_v1",
        p_names="array_fill('own'::text, ARRAY[1000])",
        p_uids=ids,
        p_versions=nulls,
        p_slots=nulls,
        p_look_ats=nulls,
        p_ticks=ones,
        t_slots=many,
        t_run_ats=many,
        t_counts=ones,
        t_overlaps=noughts,
        t_fires="array_fill(false, ARRAY[1000])",
        p_queues="'{}'",
        p_rows=f"'{{}}'::{SCHEMA}.job_row[]",
    )
    assert done(missed.text, one_by_one.text) == ["22023", "22023"]
    assert await store.ticks.history(uid) == []


# -- headers


def headers(**given: str) -> str:
    named = {name.replace("_", "-"): value for name, value in given.items()}
    return rf"'\x{msgspec.msgpack.encode(named).hex()}'::bytea"


async def test_a_confined_role_forges_no_headers_of_ours(store: PostgresBackend) -> None:
    """Neither of a schedule's job that it enqueues, nor of another schedule than the one that fires."""
    mine, theirs = (UUID(bytes=job_id(n)) for n in (901, 900))
    forged = msgspec.msgpack.encode({SLOT: f"{theirs.hex}:1"})
    long_map = rf"'\xdf00000001{forged[1:].hex()}'::bytea"
    slot = {"t_slots": numbers(77), "headers": headers(headrace_slot=f"{mine.hex}:77", headrace_schedule="own")}
    refused = [
        call("own_insert_v1", headers=headers(headrace_slot="00:999999999999999999999999")),
        call("own_insert_v1", headers=headers(x="1", headrace_delivery="at_most_once")),
        call("own_insert_v1", headers=long_map),
        enqueue(headers={"headrace-slot": f"{theirs.hex}:1"}),
        enqueue(cells={"headers": b64encode(forged).decode()}),
        call("own_plan_v1", headers=headers(headrace_slot=f"{theirs.hex}:1"), t_slots=numbers(76)),
        call("own_plan_v1", **(slot | {"t_slots": numbers(78)})),
        call("own_plan_v1", t_slots=numbers(79), headers=headers(headrace_schedule="theirs")),
    ]
    assert done(*(one.text for one in refused)) == ["22023"] * len(refused)
    allowed = [
        call("own_plan_v1", **slot),
        call("own_insert_v1", headers=headers(agent="headrace-slot of another", x_headrace_slot="1")),
        enqueue(headers={"agent": "headrace-slot"}),
    ]
    assert [type(answer) for answer in done(*(one.text for one in allowed))] == [list] * 3


# -- open transactions


async def test_a_job_of_an_earlier_day_that_is_replaced_keeps_no_day_from_being_made(store: PostgresBackend) -> None:
    await store.insert([row(8_200, queue="late", tenant="acme", key="acme/k")])
    async with acme() as connection:
        replaced = call("own_insert_v1", p_names="'{late}'", key="'k'", replaces="3")
        assert len(await (await connection.execute(replaced.text.encode())).fetchall()) == 1
        assert await asyncio.to_thread(owned, "SELECT try_lock('days')") == [(True,)]


async def test_a_look_at_the_windows_that_is_left_open_holds_up_nobody(store: PostgresBackend) -> None:
    """Neither a Valkey that takes charge nor those that settle meanwhile."""
    async with acme() as connection:
        await connection.execute(f"SELECT {SCHEMA}.name_streams_v1()".encode())
        await connection.execute(f"SELECT * FROM {SCHEMA}.in_charge_v1(NULL, '', 0)".encode())
        async with asyncio.timeout(60):
            named = await asyncio.to_thread(owned, "SELECT name_streams_v1() IS NOT NULL")
            assert named == [(True,)]
            charged = "SELECT server FROM raise_floor_v1(NULL, 'valkey', 0)"
            assert await asyncio.to_thread(owned, charged) == [("valkey",)]


async def test_who_waits_for_a_transaction_to_take_charge_holds_up_no_settlement(store: PostgresBackend) -> None:
    """A handler's transaction that has completed its job may go on: others settle, and it is told to try again."""
    owned("SELECT server FROM raise_floor_v1(NULL, 'valkey', 0)")
    await store.insert([row(n, queue="bound", tenant="other") for n in (8_000, 8_001)])
    jobs = (await store.claim(Claim("w", ("bound",), 2, LEASE))).jobs
    bound = f"SELECT complete_bound_v1('{UUID(bytes=jobs[0].id)}', {jobs[0].epoch}, 'w', NULL, 0, 1)"
    settle = (
        f"SELECT count(*) FROM complete_given_v1(NULL, 'w', '{{{UUID(bytes=jobs[1].id)}}}',"
        f" '{{{jobs[1].epoch}}}', '{{NULL}}', '{{0}}', true, 1, '{{}}')"
    )
    connect = psycopg.AsyncConnection.connect
    options = f"-c search_path={SCHEMA}"
    async with (
        await connect(url("hostile owner"), options=options) as handler,
        await connect(url("hostile owner"), options=options, autocommit=True) as taker,
    ):
        await handler.execute(bound.encode())
        with pytest.raises(psycopg.errors.LockNotAvailable):
            async with asyncio.timeout(20):
                await taker.execute(b"SELECT * FROM raise_floor_v1(NULL, 'another', 1)")
        async with asyncio.timeout(20):
            assert await asyncio.to_thread(owned, settle) == [(0,)]
        await handler.commit()
        found = await (await taker.execute(b"SELECT server FROM raise_floor_v1(NULL, 'another', 1)")).fetchall()
        assert found == [("another",)]


# -- weight


async def test_a_row_of_a_confined_role_weighs_no_more_than_a_cell_may(store: PostgresBackend) -> None:
    much, most = "decode(repeat('00', 17 * 1024 * 1024), 'hex')", "decode(repeat('00', 64 * 1024 * 1024), 'hex')"
    four = dict.fromkeys(("parameters", "vm_state", "metadata", "blob"), much)
    large = call("own_insert_v1", parameters="NULL", blob=most)
    assert [type(answer) for answer in done(large.text)] == [list]
    assert done(call("own_insert_v1", **four).text, call("own_plan_v1", **four).text) == ["22023"] * 2
    assert [answer.status.value for answer in await store.insert([row(8_100, cells={"blob": bytes(17 << 20)})])] == [
        "new"
    ]
