"""What a role that is confined to one tenant can do to others on PostgreSQL: every function that it may call, with
values that no client sends. It is refused, or it does itself harm: others never notice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import UUID

import msgspec
import psycopg
import pytest
from click.testing import CliRunner

from headrace import App
from headrace.backends.postgres import PostgresBackend
from headrace.cli.__main__ import cli
from headrace.core.headers import SLOT
from headrace.schedules.calendar import EveryRule
from headrace.schedules.plan import Definition, Template
from headrace.seam.policy import Policy
from headrace.seam.records import Claim, Record, Selector, Settlement, SweepClause, SweepTarget
from headrace.seam.ticks import NewTick, Plan, Save, Schedule, ScheduleSelector
from headrace.testing.conformance.base import LEASE, SECOND, job_id, row
from headrace.types import JobState
from tests.postgres import server

SCHEMA = "hostile"
DAY = 86_400 * SECOND
PAYLOAD = b'{"n": 1}'
OTHER = "'other'"
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
LONG = "repeat('x', 1025)"
BIG = 2**62
THEIRS = UUID(bytes=job_id(1))
UID = UUID(bytes=job_id(900))
HEADERS_OF_OURS = rf"'\x{msgspec.msgpack.encode({SLOT: '00:' + '9' * 30}).hex()}'::bytea"
ONCE_AN_HOUR = Definition(rule=EveryRule(3_600 * SECOND, 0), template=Template("t", {})).pack()

JOB = {
    "id": "gen_random_uuid()", "queue": "1", "task": "'t'", "tenant": "'acme'", "key": "NULL", "priority": "0",
    "delay": "0", "run_at": "NULL", "expires": "NULL", "max_attempts": "NULL", "timeout": "NULL", "result_ttl": "NULL",
    "headers": "NULL", "reply_to": "NULL", "hold_failed": "false", "key_until": "0", "replaces": "0",
    "group_name": "NULL", "parameters": "'{}'::bytea", "vm_state": "NULL", "metadata": "NULL", "blob": "NULL",
}  # fmt: skip


def job(**changed: str) -> str:
    """A new job with usual values for all but those."""
    unknown = changed.keys() - JOB.keys()
    assert not unknown, unknown
    return f"ROW({', '.join((JOB | changed).values())})::{SCHEMA}.job_row"


INSERT = {"p_at": "NULL", "p_names": "'{shared}'"}
ASK = {
    "p_at": "NULL", "p_named": "true", "p_ids": "'{}'", "p_key_queues": "'{}'", "p_keys": "'{}'", "p_queue": "NULL",
    "p_tenant": "NULL", "p_task": "NULL", "p_states": "NULL", "p_older_than": "NULL", "p_above": "NULL",
    "p_below": "NULL", "p_limit": "100", "p_newest": "false", "p_unasked": "false", "p_kind": "1", "p_text": "''",
}  # fmt: skip
MATCH = {name: value for name, value in ASK.items() if name not in ("p_kind", "p_text")}
FETCH = {
    "p_at": "NULL", "p_ids": "'{}'", "p_queues": "'{}'", "p_keys": "'{}'", "p_want": "15::smallint", "p_error": "true",
    "p_result": "true",
}  # fmt: skip
SCHEDULE = {
    "name": "'mine'", "uid": "gen_random_uuid()", "queue": "'shared'", "definition": r"'\x80'::bytea",
    "tenant": "'acme'", "plan_priority": "0", "bucket": "0", "enabled": "true", "slot": "NULL", "look_at": "NULL",
    "runs": "0", "last_slot": "NULL", "last_job": "NULL", "version": "0", "created_at": "0", "updated_at": "0",
}  # fmt: skip
SAVE = {"p_at": "NULL", "p_drops": "'{false}'"}
PLAN = {
    "p_at": "NULL", "p_names": "'{own}'", "p_uids": f"ARRAY['{UUID(bytes=job_id(901))}']::uuid[]",
    "p_versions": "'{NULL}'", "p_slots": "'{NULL}'", "p_look_ats": "'{NULL}'", "p_ticks": "'{1}'",
    "t_slots": "ARRAY[(random() * 1e15)::bigint]", "t_run_ats": "'{1}'", "t_counts": "'{1}'", "t_overlaps": "'{0}'",
    "t_fires": "'{true}'", "p_queues": "'{shared}'",
}  # fmt: skip
FUNCTIONS = {
    "own_insert_v1": INSERT, "ask_v1": ASK, "own_matching_v1": MATCH, "own_fetch_v1": FETCH, "own_save_v1": SAVE,
    "own_plan_v1": PLAN,
}  # fmt: skip


_REFUSALS = ("22023", "42501", "23502", "2201W", "55000")
"""Out of bounds; no right; NULL; a negative limit; a view that cannot be written."""


class Call(NamedTuple):
    """One statement, and what comes of it: it is refused, or else answered with so many rows."""

    text: str
    rows: int | None = None


def call(function: str, rows: int | None = None, **changed: str) -> Call:
    """With usual values for all but those, of its parameters, and of its job where it has one."""
    columns = SCHEDULE if function == "own_save_v1" else JOB
    parameters = FUNCTIONS[function] | {name: value for name, value in changed.items() if name not in columns}
    unknown = parameters.keys() - FUNCTIONS[function].keys() - {"p_rows"}
    assert not unknown, unknown
    own = {name: value for name, value in changed.items() if name in columns}
    if function == "own_save_v1":
        one = f"ROW({', '.join((SCHEDULE | own).values())})::{SCHEMA}.schedule_row"
        parameters = {"p_schedules": f"ARRAY[{one}]"} | parameters
    elif function in ("own_insert_v1", "own_plan_v1"):
        parameters = {"p_rows": f"ARRAY[{job(**own)}]"} | parameters
    given = ", ".join(f"{name} => {value}" for name, value in parameters.items())
    return Call(f"SELECT * FROM {SCHEMA}.{function}({given})", rows)


def enqueue(rows: int | None = None, **job: Any) -> Call:
    return Call(f"SELECT * FROM {SCHEMA}.enqueue_v1('{json.dumps({'task': 't', 'tenant': 'acme'} | job)}')", rows)


def numbers(value: int) -> str:
    return f"'{{{value}}}'"


REFUSED_ROWS: dict[str, list[dict[str, str]]] = {
    "texts": [
        {"task": "''"}, {"task": LONG}, {"task": "NULL"}, {"key": LONG}, {"group_name": LONG}, {"reply_to": LONG},
        {"p_names": "'{\"\"}'"}, {"p_names": f"ARRAY[{LONG}]"}, {"p_names": r"ARRAY[E'mail\n']"},
        {"p_names": r"ARRAY[E'mail\u2028']"},
        {"p_names": "ARRAY(SELECT 'many ' || n FROM generate_series(1, 1000) AS n)"},
    ],
    "tenants": [
        {"tenant": OTHER}, {"tenant": "''"}, {"tenant": "NULL"}, {"id": f"'{THEIRS}'"},
        {"p_rows": f"ARRAY[{job()}, {job(tenant=OTHER)}]"},
    ],
    "cells": [
        {"headers": "decode(repeat('00', 10241), 'hex')"},
        {"blob": "decode(repeat('00', 64 * 1024 * 1024 + 1), 'hex')"},
        dict.fromkeys(("vm_state", "blob"), "decode(repeat('00', 40 * 1024 * 1024), 'hex')"),
        {"headers": HEADERS_OF_OURS},
    ],
    "numbers": [
        {name: str(value)}
        for name in ("delay", "run_at", "expires", "timeout", "result_ttl")
        for value in (-1, BIG, 2**63 - 1)
    ] + [{"max_attempts": "0"}, {"max_attempts": "-1"}, {"delay": "NULL"}],
    "shapes": [
        {"queue": "99"}, {"queue": "0"}, {"id": "NULL"}, {"p_rows": "'{}'"}, {"p_rows": "NULL"},
        {"p_rows": f"ARRAY[NULL]::{SCHEMA}.job_row[]"},
    ],
}  # fmt: skip
INSERTS = [call("own_insert_v1", **changed) for kind in REFUSED_ROWS.values() for changed in kind] + [
    call("own_insert_v1", 0, p_at=str(2**63 - 1)),
    call("own_insert_v1", 0, p_at="-1", expires="0"),
    call("own_insert_v1", 0, key="'k1'"),
    call("own_insert_v1", 0, key="'other/k1'", result_ttl=str(3650 * DAY)),
    call("own_insert_v1", 0, priority="-32768", reply_to="'inbox'"),
    *[call("own_insert_v1", 0, headers=r"'\x81a1ffa161'::bytea")] * 4,
    call("own_insert_v1", 0, headers=r"'\xc1'::bytea", parameters=r"'\xff'::bytea"),
    enqueue(tenant="other"),
    enqueue(tenant=None),
    enqueue(id=str(THEIRS)),
    enqueue(cells={"headers": "AAAA" * 5_000}),
    enqueue(headers={"headrace-slot": "1"}),
    enqueue(expires=-1),
    enqueue(queue="mail\r\n"),
    enqueue(1, key="k2"),
    enqueue(1, key="other/k2"),
    Call(f"SELECT * FROM {SCHEMA}.enqueue_v1((SELECT jsonb_agg('{{}}'::jsonb) FROM generate_series(1, 10001)))"),
]
PLANS = [
    call("own_plan_v1", **{"p_queues" if name == "p_names" else name: value for name, value in changed.items()})
    for kind in REFUSED_ROWS.values()
    for changed in kind
] + [
    call("own_plan_v1", p_ticks=numbers(2**31 - 1)),
    call("own_plan_v1", p_ticks="'{-1}'"),
    call("own_plan_v1", p_ticks="'{0}'"),
    call("own_plan_v1", t_counts="'{-1}'"),
    call("own_plan_v1", t_slots=numbers(BIG)),
    call("own_plan_v1", t_run_ats=numbers(-5)),
    call("own_plan_v1", t_fires="'{false}'"),
    call("own_plan_v1", p_ticks="'{-1,2}'"),
    call("own_plan_v1", p_versions="'{1}'", p_slots="'{1}'"),
    call("own_plan_v1", p_versions="'{7}'", p_slots="'{1}'"),
    call("own_plan_v1", p_look_ats=numbers(BIG)),
    call("own_plan_v1", 1, p_names="'{theirs}'", p_uids=f"ARRAY['{UID}']::uuid[]"),
    call("own_plan_v1", 1, p_names="'{other/theirs}'", p_uids=f"ARRAY['{UID}']::uuid[]"),
    call("own_plan_v1", 1, p_names="'{none}'"),
    call("own_plan_v1", 0, p_at=str(BIG), t_overlaps="'{2}'"),
    call("own_plan_v1", 0, key="'k3'"),
]
SAVES = [
    call("own_save_v1", **changed)
    for changed in (
        {"tenant": "'other'"}, {"name": "''"}, {"name": LONG}, {"name": "NULL"}, {"queue": LONG},
        {"queue": r"E'mail\x7f'"}, {"plan_priority": "-1"}, {"bucket": "-5"}, {"runs": str(2**63 - 1)},
        {"runs": "-1"}, {"slot": str(BIG)}, {"slot": "1"}, {"look_at": "-1"},
        {"last_slot": str(BIG)}, {"last_job": f"'{THEIRS}'"}, {"uid": f"'{UID}'"},
        {"definition": "decode(repeat('00', 300000), 'hex')"}, {"definition": "NULL"},
        {"tenant": "'other'", "p_drops": "'{NULL}'"}, {"tenant": "'other'", "p_drops": "'{}'"},
    )
] + [
    call("own_save_v1", 1, name="'theirs'", version="1", p_drops="'{true}'"),
    call("own_save_v1", 1, name="'other/theirs'", version="2", p_drops="'{true}'"),
    call("own_save_v1", 1, name="'theirs'", p_at=str(BIG)),
]  # fmt: skip
ASKS = [
    call("ask_v1", p_named="false", p_text="repeat('x', 5000000)"),
    call("ask_v1", p_named="false", p_text="NULL"),
    call("ask_v1", p_kind="9"),
    call("ask_v1", p_kind="7", p_text="''"),
    call("ask_v1", p_kind="7", p_text=LONG),
    call("ask_v1", p_named="false", p_limit="-1"),
    call("ask_v1", 0, p_ids=f"ARRAY['{THEIRS}']::uuid[]"),
    call("ask_v1", 0, p_key_queues="'{shared,shared,shared}'", p_keys="'{k0,other/k0,../k0}'"),
    call("ask_v1", 0, p_named="false", p_tenant="'other'"),
    call("ask_v1", 0, p_ids=f"ARRAY['{THEIRS}']::uuid[]", p_kind="7", p_text="'inbox'"),
    call("own_fetch_v1", 0, p_ids=f"ARRAY['{THEIRS}']::uuid[]"),
    call("own_fetch_v1", 0, p_queues="'{shared,shared}'", p_keys="'{k0,other/k0}'"),
    call("own_matching_v1", 0, p_named="false", p_tenant="'other'"),
    call("own_matching_v1", 0, p_ids=f"ARRAY['{THEIRS}']::uuid[]"),
    Call(f"SELECT * FROM {SCHEMA}.own_find_v1('{{other/theirs}}', NULL, NULL, NULL, 100)", 0),
    Call(f"SELECT * FROM {SCHEMA}.own_find_v1('{{theirs}}', NULL, NULL, NULL, 100) WHERE uid = '{UID}'", 0),
    Call(f"SELECT * FROM {SCHEMA}.own_find_v1(NULL, 'other', NULL, NULL, 100)", 0),
    Call(f"SELECT * FROM {SCHEMA}.own_history_v1('{UID}', NULL, 100)", 0),
    Call(f"SELECT * FROM {SCHEMA}.own_due_v1({BIG}, 100, 0, 1) WHERE name IS NOT NULL", 0),
    Call(f"SELECT * FROM {SCHEMA}.jobs_v1 WHERE tenant <> 'acme'", 0),
    Call(f"SELECT * FROM {SCHEMA}.own_tenants() AS t WHERE t <> '{{acme}}'", 0),
    Call(f"SELECT {SCHEMA}.failure_text(decode('9f8f', 'hex') || convert_to(repeat('x', 1000000), 'UTF8'))", 1),
    Call(f"SELECT * FROM {SCHEMA}.migrations WHERE version < 0", 0),
    Call(f"SELECT {SCHEMA}.name_streams_v1()", 1),
    Call(f"SELECT * FROM {SCHEMA}.in_charge_v1({BIG}, 'mine', {BIG}) WHERE now > 9e15", 0),
    Call(
        f"SELECT * FROM {SCHEMA}.workers_of_v1(NULL, regexp_split_to_array('{LETTERS}', '')) WHERE worker <> ''",
        0,
    ),
]
FORBIDDEN = [
    Call(f"SELECT * FROM {SCHEMA}.{what}")
    for what in (
        "jobs", "ready", "locks", "queues FOR UPDATE", "locks FOR UPDATE", "tenant_roles", "queues_v1",
        "stats_v1(NULL, 1)", "workers_v1(NULL)", "fetch_v1(NULL, '{}', '{}', '{}', 0::smallint, false, false)",
        "forget_queues_v1(NULL)", "begin_duty_v1(NULL, 'days')", "make_day_v1(NULL)",
        "drop_day_v1(NULL, 3::smallint, 0)", "settle_day_v1(1)", "lockers_v1()",
        "delayed_v1(NULL, '{shared}', 1, 1)", "oldest_waiting_v1(NULL, '{shared}', '{1}', ARRAY[gen_random_uuid()])",
        "raise_floor_v1(NULL, 'mine', 0)", "watch_streams_v1(NULL, 0)", "streams",
        "places_v1()", "confine_v1('acme', NULL)", "grant_v1('janitor', 'acme')",
    )
] + [
    Call(f"DO 'BEGIN LOCK TABLE {SCHEMA}.queues IN ACCESS SHARE MODE; END'"),
    Call(f"DO 'BEGIN LOCK TABLE {SCHEMA}.jobs_v1 IN ROW SHARE MODE; END'"),
    Call(f"UPDATE {SCHEMA}.jobs_v1 SET task = 'x'"),
    Call(f"UPDATE {SCHEMA}.migrations SET version = 0"),
]  # fmt: skip
SCRIPT = [*INSERTS, *PLANS, *SAVES, *ASKS, *FORBIDDEN]


# -- the store


def superuser(*statements: str) -> None:
    with psycopg.connect(server().url(), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def url(user: str) -> str:
    return server().url(user=quote(user))


def backend(user: str = "hostile owner") -> PostgresBackend:
    return PostgresBackend(url(user), schema=SCHEMA, listen=False)


async def make() -> None:
    """Two tenants in one queue. The other one has jobs in every state, with results, errors and a schedule."""
    roles = ("hostile owner", "hostile acme", "hostile reader", "hostile crew", "hostile stranger")
    superuser(
        f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE",
        *(f'DROP ROLE IF EXISTS "{role}"' for role in roles),
        *(f'CREATE ROLE "{role}" LOGIN' for role in roles),
        f'CREATE SCHEMA {SCHEMA} AUTHORIZATION "hostile owner"',
    )
    store = backend()
    await store.open()
    await store.migrator.grant("producer", "hostile acme", ["acme"])
    await store.migrator.grant("reader", "hostile acme")
    await store.migrator.grant("reader", "hostile reader")
    for part in ("worker", "janitor"):
        await store.migrator.grant(part, "hostile crew")
    ended = [row(n, queue="shared", tenant="other", cells={"parameters": PAYLOAD}) for n in range(10, 30)]
    await store.insert(ended)
    jobs = (await store.claim(Claim("w", ("shared",), 20, LEASE))).jobs
    results = [(JobState.COMPLETED, b"result", "", None), (JobState.FAILED, None, "broken", b"error")]
    await store.finish(
        [
            Settlement(job.id, job.epoch, "w", state, result=result, result_ttl=DAY, reason=reason, error=error)
            for job, (state, result, reason, error) in zip(jobs, results * 10, strict=True)
        ]
    )
    await store.insert(
        [
            row(n, queue="shared", tenant="other", key=f"k{n - 1}", cells={"parameters": PAYLOAD}, result_ttl=DAY)
            for n in range(1, 8)
        ]
    )
    for number, tenant, name in ((900, "other", "theirs"), (901, "acme", "own")):
        schedule = Schedule(name=name, uid=job_id(number), queue="shared", tenant=tenant, definition=ONCE_AN_HOUR)
        assert await store.ticks.save([Save(schedule, 0)]) == [True]
    await store.ticks.plan([Plan("theirs", job_id(900), None, [NewTick(1, 1)])])
    await store.close()


@pytest.fixture
async def store() -> AsyncIterator[PostgresBackend]:
    await make()
    owned = backend()
    await owned.open()
    yield owned
    await owned.close()


async def of_others(store: PostgresBackend) -> list[tuple[Any, ...]]:
    """All that can be told of the other tenant's jobs and schedules."""
    names = [record.id for record in (await store.scan(Selector(tenant="other"), None, 1_000)).records]
    found = await store.fetch(names, frozenset({"parameters", "result", "error"}))
    [schedule] = await store.ticks.find(ScheduleSelector(tenant="other"))
    ticks = await store.ticks.history(job_id(900))
    return [*map(told, found), ("schedule", schedule), ("ticks", tuple(ticks))]


def told(record: Record | None) -> tuple[Any, ...]:
    assert record is not None
    return (
        record.id,
        record.state,
        record.key,
        record.run_at,
        record.reason,
        record.result,
        record.error,
        record.epoch,
    )


def run(script: list[Call], user: str) -> list[str]:
    """What did not come out as expected."""
    wrong = []
    with psycopg.connect(url(user), autocommit=True, options="-c statement_timeout=60000") as connection:
        for one in script:
            try:
                cursor = connection.execute(one.text.encode())
                found = len(cursor.fetchall()) if cursor.description else 0
            except psycopg.Error as error:
                meant = error.sqlstate in _REFUSALS
                if one.rows is not None or not meant:
                    wrong.append(f"{one.text[:300]}: {error}")
                continue
            if found != one.rows:
                wrong.append(f"{one.text[:300]}: {found} rows instead of {one.rows}")
    return wrong


# -- tests


def test_the_script_is_long_enough() -> None:
    assert len(SCRIPT) >= 50


async def test_others_do_not_notice(store: PostgresBackend) -> None:
    before = await of_others(store)
    assert await asyncio.to_thread(run, SCRIPT, "hostile acme") == []
    assert await of_others(store) == before
    await check_counters(store)
    await check_retention(store)
    assert await of_others(store) == before
    await check_reading()
    save_endless()
    await check_workers(store)


async def check_counters(store: PostgresBackend) -> None:
    """What is counted is what there is."""
    counted = {place.target: (place.count, place.bytes) for place in (await store.stats()).kept}
    query = f"SELECT state, count(*), sum(size) FROM {SCHEMA}.ended GROUP BY state"
    with psycopg.connect(url("hostile owner")) as connection:
        there = {state: (count, size) for state, count, size in connection.execute(query.encode())}
    assert counted["completed"] == there[3]
    assert counted["failed"] == there[5]


async def check_retention(store: PostgresBackend) -> None:
    """Nothing weighs more than it does, so nobody pushes others out."""
    for place in (SweepTarget.COMPLETED, SweepTarget.FAILED, SweepTarget.CANCELLED):
        swept = await store.sweep(SweepClause(target=place, max_count=1_000, max_bytes=10_000_000))
        assert swept.removed == 0


async def check_reading() -> None:
    """The view, the client and the command line."""
    counts = "count(*) FILTER (WHERE tenant = 'other'), max(finished_at) < now() + interval '1 hour'"
    query = f"SELECT {counts} FROM {SCHEMA}.jobs_v1"
    with psycopg.connect(url("hostile reader")) as connection:
        assert connection.execute(query.encode()).fetchall() == [(27, True)]
    address = f"{url('hostile reader')}?schema={SCHEMA}&migrate=no"
    async with App(address) as app:
        jobs = await app.client.list_jobs(Selector(), 1_000)
        assert sum(job.tenant == "other" for job in jobs) == 27
    for arguments in (("job", "list", "--limit", "1000"), ("job", "list", "--limit", "1000", "--json")):
        result = await asyncio.to_thread(CliRunner().invoke, cli, [*arguments, "--url", address])
        assert result.exit_code == 0, result.output


def save_endless() -> None:
    """Schedules that would make jobs without end."""
    usual = msgspec.msgpack.decode(ONCE_AN_HOUR)
    with psycopg.connect(url("hostile acme"), autocommit=True) as connection:
        for interval in (1, -1_000_000, 0):
            usual["rule"]["interval"] = interval
            packed = msgspec.msgpack.encode(usual).hex()
            text = call(
                "own_save_v1",
                name=f"'endless {interval}'",
                slot="7000000000000000",
                look_at="1",
                definition=rf"'\x{packed}'::bytea",
            ).text
            assert connection.execute(text.encode()).fetchall() == [([1],)]


async def check_workers(store: PostgresBackend) -> None:
    """All waiting jobs of the other tenant are run, and none is lost; whatever else waits beside them."""
    app = App(f"{url('hostile crew')}?schema={SCHEMA}&migrate=no", worker={"poll": "50ms"})

    @app.task(name="t", queue="shared")
    async def t(n: int = 0) -> int:
        return n

    work = asyncio.ensure_future(app.work())
    try:
        async with asyncio.timeout(60):
            while True:
                found = await store.fetch([job_id(n) for n in range(1, 8)], frozenset({"result"}))
                endless = await store.ticks.find(ScheduleSelector(tenant="acme"))
                told = {one.name: one.enabled for one in endless if "endless" in one.name}
                all_run = all(record is not None and record.state is JobState.COMPLETED for record in found)
                if all_run and not any(told.values()):
                    break
                await asyncio.sleep(0.05)
    finally:
        app.stop()
        await work
        await app.client.close()
    assert all(record is not None and record.result for record in found)
    assert told == dict.fromkeys(("acme/endless -1000000", "acme/endless 0", "acme/endless 1"), False)
    assert len((await store.scan(Selector(tenant="acme"), None, 1_000)).records) < 50


async def test_watches_are_bounded(store: PostgresBackend) -> None:
    """Whoever waits for one job with many names fills neither a table nor a worker's hands."""
    await store.insert([row(500, queue="q", tenant="acme", key="k")])
    mine = UUID(bytes=job_id(500))

    def watch() -> None:
        text = call("ask_v1", p_ids=f"ARRAY['{mine}']::uuid[]", p_kind="7", p_text="'inbox ' || n").text
        many = text.replace("SELECT *", "SELECT count(*)")
        with psycopg.connect(url("hostile acme"), autocommit=True) as connection:
            connection.execute(f"SELECT ({many}) FROM generate_series(1, 2000) AS n".encode())
            same = call("own_insert_v1", p_names="'{q}'", key="'w'", reply_to="'in ' || n").text
            again = same.replace("SELECT *", "SELECT count(*)")
            connection.execute(f"SELECT ({again}) FROM generate_series(1, 600) AS n".encode())

    await asyncio.to_thread(watch)
    with psycopg.connect(url("hostile owner")) as connection:
        query = f"SELECT max(c) FROM (SELECT count(*) AS c FROM {SCHEMA}.waiters GROUP BY id) AS x"
        assert connection.execute(query.encode()).fetchall() == [(100,)]


async def test_a_cell_that_is_too_large_never_reaches_a_worker(store: PostgresBackend) -> None:
    """However it came into the store: here by the owner's hand."""
    await store.insert([row(600, queue="large"), row(601, queue="large")])
    with psycopg.connect(url("hostile owner"), autocommit=True) as connection:
        query = f"UPDATE {SCHEMA}.jobs SET blob = decode(repeat('00', 64 * 1024 * 1024 + 1), 'hex') WHERE id = %s"
        connection.execute(query.encode(), (UUID(bytes=job_id(600)),))
    claimed = await store.claim(Claim("w", ("large",), 2, LEASE))
    assert [job.cells.get("blob") for job in claimed.jobs] == [b"", None]


@pytest.mark.parametrize("name", ["queues", "deltas", "ended 3", "ended 5", "groups 1", "depth 1", "ticks"])
async def test_whoever_is_let_into_the_database_locks_nothing_of_ours(store: PostgresBackend, name: str) -> None:
    """Locks in memory can be had by everybody; those that there once were, and whatever else ``pg_locks`` shows."""
    tables = {"queues": "queues", "deltas": "deltas", "ended 3": "ended", "ended 5": "ended", "ticks": "ticks"}
    table = tables.get(name, "looks" if name.startswith("groups") else "policies")
    with psycopg.connect(url("hostile stranger"), autocommit=True) as stranger:
        lock = (
            "SELECT pg_advisory_lock(hashtextextended(%s, c.oid::bigint)) FROM pg_class AS c"
            " JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s"
        )
        stranger.execute(lock, (f"headrace {name}", SCHEMA, table))
        held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()"
        async with asyncio.timeout(30):
            await store.insert([row(n, queue="q", group=f"g{n}") for n in range(700, 740)])
            await store.sweep(SweepClause(target=SweepTarget.COMPLETED, max_count=5))
            await store.sweep(SweepClause(target=SweepTarget.FAILED, max_count=5))
            await store.sweep(SweepClause(target=SweepTarget.TICKS, max_count=0))
        assert stranger.execute(held).fetchall() == [(0,)]
        for what in ("queues", "locks", "jobs"):
            for mode in ("ACCESS SHARE", "ROW SHARE", "EXCLUSIVE"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege), stranger.transaction():
                    stranger.execute(f"LOCK TABLE {SCHEMA}.{what} IN {mode} MODE".encode())
    counted = {place.target: place.count for place in (await store.stats()).kept}
    assert (counted["completed"], counted["failed"], counted["ticks"]) == (5, 5, 0)


OURS = ("1751474532, 1", "1751474532, 2")
"""Locks in memory by which ``insert_one_v1`` goes, as everybody can read there."""


def seen_locks() -> set[str]:
    """Those that ``pg_locks`` shows, as the functions that take them are told."""
    query = "SELECT classid::bigint, objid::bigint, objsubid FROM pg_locks WHERE locktype = 'advisory' AND granted"
    with psycopg.connect(server().url(), autocommit=True) as connection:
        found = connection.execute(query).fetchall()
    return {
        f"{high}, {low}" if kind == 2 else str((high << 32 | low) - (high >> 31 << 64)) for high, low, kind in found
    }


async def locks_of_listeners() -> set[str]:
    """Those that they have, as a stranger can look up."""
    listening = PostgresBackend(url("hostile owner"), schema=SCHEMA)
    await listening.open()
    assert listening.hints is not None
    assert listening.events is not None
    async with listening.hints.listen(["queue:q"]), listening.events.listen():
        found = await asyncio.to_thread(seen_locks)
    await listening.close()
    assert len(found) == 2
    return found


@asynccontextmanager
async def taken(locks: Iterable[str]) -> AsyncIterator[None]:
    """A stranger has these locks, or is the first to wait for them."""
    tasks, began = [], "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'"
    async with AsyncExitStack() as strangers:
        for lock in locks:
            stranger = await psycopg.AsyncConnection.connect(url("hostile stranger"), autocommit=True)
            await strangers.enter_async_context(stranger)
            take = f"SELECT pg_catalog.pg_advisory_lock({lock})".encode()
            tasks.append(asyncio.ensure_future(stranger.execute(take)))
        async with await psycopg.AsyncConnection.connect(server().url(), autocommit=True) as looking:
            while (await (await looking.execute(began)).fetchone()) != (len(tasks),):
                await asyncio.sleep(0.01)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("waiting", [False, True])
async def test_locks_of_strangers_keep_nobody_from_hearing_of_jobs(store: PostgresBackend, waiting: bool) -> None:
    """Be they had or only waited for."""
    locks = await locks_of_listeners() | set(OURS)
    await store.insert([row(800, queue="q")])
    first, second = (PostgresBackend(url("hostile owner"), schema=SCHEMA) for _ in range(2))
    await first.open()
    await second.open()
    assert second.hints is not None
    assert first.events is not None
    assert second.events is not None
    async with asyncio.timeout(60), AsyncExitStack() as ours, AsyncExitStack() as theirs:
        if waiting:
            assert first.hints is not None
            await ours.enter_async_context(first.hints.listen(["queue:q"]))
            await ours.enter_async_context(first.events.listen())
        await theirs.enter_async_context(taken(locks))
        hints = await ours.enter_async_context(second.hints.listen(["queue:q"]))
        events = await ours.enter_async_context(second.events.listen())
        await store.insert([row(801, queue="q")])
        assert (await anext(hints)).topic == "queue:q"
        assert await first.events.heard()
        await first.events.tell([b"news"])
        assert await anext(events) == b"news"
        await theirs.aclose()
        while await asyncio.to_thread(seen_locks) != locks - {OURS[1]}:
            await asyncio.sleep(0.05)
        await store.insert([row(802, queue="q")])
        assert (await anext(hints)).topic == "queue:q"
    await first.close()
    await second.close()


async def test_a_transaction_that_a_confined_role_leaves_open_holds_up_nobody_else(store: PostgresBackend) -> None:
    """Neither those who enqueue into the same queue nor the workers that end jobs of its groups."""
    assert store.policies is not None
    await store.policies.save(Policy(queue="grouped", group_running=1, depth=10_000))
    await store.insert([row(n, queue="grouped", tenant="other", group=f"o{n}") for n in range(2_000, 2_040)])
    await store.insert([row(n, queue="grouped", tenant="acme", group=f"a{n}") for n in range(3_000, 3_200)])
    jobs = (await store.claim(Claim("w", ("grouped",), 40, LEASE))).jobs
    waiting = [UUID(bytes=job_id(n)) for n in range(3_000, 3_200)]
    one = job(group_name="'g' || n", parameters="NULL")  # the groups share all the locks that there are
    rows = f"ARRAY(SELECT {one} FROM generate_series(0, 199) AS n)"
    left_open = (
        call("own_insert_v1", p_names="'{grouped}'", p_rows=rows),
        call("ask_v1", p_ids=f"ARRAY{list(map(str, waiting))}::uuid[]"),
    )
    for number, left in enumerate(left_open):
        async with await psycopg.AsyncConnection.connect(url("hostile acme")) as connection:
            await connection.execute(left.text.encode())
            done = [Settlement(job.id, job.epoch, "w", JobState.COMPLETED) for job in jobs[20 * number :][:20]]
            new = range(4_000 + 100 * number, 4_040 + 100 * number)
            async with asyncio.timeout(60):
                assert await store.finish(done) == [JobState.COMPLETED] * 20
                await store.insert([row(n, queue="grouped", tenant="other", group=f"o{n}") for n in new])
            await connection.rollback()


async def test_a_schedule_that_a_confined_role_has_in_hand_keeps_nobody_s_else_from_being_planned(
    store: PostgresBackend,
) -> None:
    for number, name, tenant in ((910, "first", "acme"), (911, "second", "other")):
        schedule = Schedule(name=name, uid=job_id(number), queue="q", tenant=tenant, definition=ONCE_AN_HOUR, slot=1)
        assert await store.ticks.save([Save(schedule, 0)]) == [True]
    plans = [Plan(name, job_id(number), 1, [NewTick(1, 1)], 2, 2) for number, name in ((910, "first"), (911, "second"))]
    own = call("own_plan_v1", p_names="'{first}'", p_uids=f"ARRAY['{UUID(bytes=job_id(910))}']::uuid[]")
    async with await psycopg.AsyncConnection.connect(url("hostile acme")) as connection:
        await connection.execute(own.text.encode())
        async with asyncio.timeout(60):
            assert [outcomes is not None for outcomes in await store.ticks.plan(plans)] == [False, True]
        await connection.rollback()
    assert [outcomes is not None for outcomes in await store.ticks.plan(plans[:1])] == [True]
