"""Jobs from SQL: what psql, triggers and other languages call."""

from __future__ import annotations

import asyncio
import json
import subprocess
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import errors, sql
from servers.postgres import BINARIES

from headrace import JobInfo, JobState, NewJob
from headrace.backends.postgres.hints import channel
from headrace.core.driving import drive
from headrace.seam.records import Claim, Row
from tests.bind.conftest import Shop

DUMMY = UUID(int=7)


def enqueue(shop: Shop, *jobs: dict[str, Any] | str) -> list[tuple[Any, ...]]:
    """What ``enqueue_v1`` answers to one job, or to an array of them."""
    given = [job if isinstance(job, str) else json.dumps(job) for job in jobs]
    text = given[0] if len(given) == 1 else f"[{','.join(given)}]"
    with psycopg.connect(shop.url, autocommit=True) as connection:
        return connection.execute("SELECT * FROM headrace.enqueue_v1(%s)", (text,)).fetchall()


async def stored(shop: Shop, job_id: UUID) -> JobInfo:
    async with shop.app:
        return await shop.app.get(job_id)


async def test_from_psql(shop: Shop) -> None:
    job = '{"task": "extract", "queue": "extracts", "args": {"uid": "ü", "revision": 3}}'
    statement = f"SELECT ord, status, state, attempt FROM headrace.enqueue_v1('{job}')"
    command = [str(BINARIES / "psql"), "-XAtq", shop.url, "-c", statement]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1|new|available|0"
    await shop.drain()
    assert shop.ran == [("ü", 3)]


async def test_from_a_trigger(shop: Shop) -> None:
    shop.run("""
        CREATE OR REPLACE FUNCTION public.extract_later() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM headrace.enqueue_v1(jsonb_build_object(
                'task', 'extract', 'queue', 'extracts', 'key', NEW.uid, 'args', jsonb_build_object('uid', NEW.uid)
            ));
            RETURN NULL;
        END $$
    """)
    shop.run(
        "CREATE TRIGGER later AFTER INSERT ON public.revisions FOR EACH ROW EXECUTE FUNCTION public.extract_later()"
    )
    try:
        shop.run("INSERT INTO public.revisions VALUES ('a'), ('b'), ('a')")
    finally:
        shop.run("DROP TRIGGER later ON public.revisions")
    await shop.drain()
    assert sorted(shop.ran) == [("a", 0), ("b", 0)]


async def test_answers_come_in_order(shop: Shop) -> None:
    """And so are jobs of one call claimed."""
    keyed = {"task": "extract", "queue": "extracts", "key": "k", "args": {"uid": "k"}}
    others = [{"task": "extract", "queue": "extracts", "args": {"uid": str(n)}} for n in range(50)]
    answers = enqueue(shop, keyed, *others, keyed)
    assert [ord_ for ord_, *_ in answers] == list(range(1, 53))
    assert [status for _, _, status, *_ in answers] == ["new"] * 51 + ["duplicate"]
    ids = [job_id for _, job_id, *_ in answers[:51]]
    assert sorted(ids) == ids
    assert {job_id.version for job_id in ids} == {7}
    assert answers[51][1] == ids[0]
    store = shop.app.client._backend
    async with shop.app:
        claimed = (await store.claim(Claim("holder", ("extracts",), 100, 10**7))).jobs
    assert [job.id for job in claimed] == [job_id.bytes for job_id in ids]


async def test_what_is_there_already(shop: Shop) -> None:
    keyed = {"task": "extract", "queue": "extracts", "key": "k", "args": {"uid": "k"}}
    ids = [job_id for _, job_id, *_ in enqueue(shop, keyed, {"task": "other", "queue": "others"})]
    await shop.drain()
    [(_, job_id, status, state, attempt, result)] = enqueue(shop, keyed)
    assert (job_id, status, state, attempt) == (ids[0], "done", "completed", 0)
    assert shop.app.client.packer.envelope.unwrap(result, "result")[1] == b"0"
    [(_, job_id, status, *_)] = enqueue(shop, {"task": "extract", "id": str(ids[1])})
    assert (job_id, status) == (ids[1], "same")
    assert enqueue(shop, "[]") == []


async def test_a_waiting_job_is_replaced(shop: Shop) -> None:
    """In the transaction of the caller: not at all, if that is rolled back."""
    keyed = {"task": "extract", "queue": "extracts", "key": "k", "args": {"uid": "a"}, "delay": 3600}
    [(_, job_id, *_)] = enqueue(shop, keyed)
    given = keyed | {"args": {"uid": "b"}, "on_duplicate": "replace", "delay": 0}
    with psycopg.connect(shop.url) as connection:
        connection.execute("SELECT headrace.enqueue_v1(%s)", [json.dumps(given)])
        connection.rollback()
    assert (await stored(shop, job_id)).args == {"uid": "a"}
    [(_, answered, status, state, *_)] = enqueue(shop, given)
    assert (answered, status, state) == (job_id, "replaced", "available")
    async with shop.app:
        with psycopg.connect(shop.url) as connection:
            bound = shop.app.bind(connection)
            jobs = [
                NewJob(task="extract", queue="extracts", key="k", args={"uid": "c"}, on_duplicate="replace arguments")
            ]
            [handle] = bound.enqueue_many(jobs)
        assert (handle.id, handle.replaced) == (job_id, True)
        await shop.app.drain()
        info = await shop.app.get(job_id)
    assert (info.args, info.state) == ({"uid": "c"}, "completed")


async def test_everything_that_a_job_takes(shop: Shop) -> None:
    """Is stored as Python stores it."""
    job_id = UUID(int=1 << 100)
    [(_, answered, *_)] = enqueue(
        shop,
        {
            "task": "extract", "queue": "other", "id": str(job_id), "key": "", "tenant": "acme", "priority": -3,
            "run_at": "2027-01-15T09:00:00.000001+01:00", "expires": "1h30m", "timeout": 0.25, "max_attempts": 4,
            "result_ttl": "1 day", "headers": {"a": "b", "ü" * 20: "x" * 40, "long": "y" * 300}, "on_failed": "return",
            "args": {"uid": "a"},
        },
    )  # fmt: skip
    info = await stored(shop, job_id)
    assert answered == info.id == job_id
    assert (info.queue, info.task, info.key, info.tenant, info.priority) == ("other", "extract", "", "acme", -3)
    assert info.run_at == datetime(2027, 1, 15, 8, 0, 0, 1, tzinfo=UTC)
    assert info.enqueued_at is not None
    assert info.expires_at is not None
    assert (info.expires_at - info.enqueued_at).total_seconds() == 5400
    assert (info.max_attempts, info.args) == (4, {"uid": "a"})
    assert info.headers == {"a": "b", "ü" * 20: "x" * 40, "long": "y" * 300}
    assert shop.run("SELECT timeout FROM headrace.jobs") == [250_000]
    assert shop.run("SELECT result_ttl FROM headrace.jobs") == [86_400_000_000]


async def test_a_row_of_the_client_goes_through_it_unchanged(shop: Shop) -> None:
    """To the microsecond, and with what is empty told from what is not there."""
    tx, row = shop.app.client._backend, Row(
        DUMMY.bytes, "ü q", "t", {"parameters": b"", "vm_state": b"\0\xff{", "blob": bytes(range(256))}, "té", "k", 5,
        delay=0, run_at=1_800_000_000_000_001, expires=315_360_000_000_001, max_attempts=2**31 - 1, timeout=1,
        result_ttl=0, headers=b"\x81\xa1a\xa1\0", hold_failed=True,
    )  # fmt: skip
    later = Row(UUID(int=8).bytes, "q", "t", {}, delay=123_456_789)
    with psycopg.connect(shop.url) as connection:
        [one, two] = drive(tx.tx.join(connection).insert([row, later]))  # type: ignore[attr-defined]
    assert (one.id, two.id) == (row.id, later.id)
    async with shop.app:
        [found, delayed] = await tx.fetch([row.id, later.id], frozenset({"parameters", "vm_state", "metadata", "blob"}))
    assert found is not None
    assert delayed is not None
    assert found.cells == row.cells
    assert found.expires_at is not None
    same = ("queue", "task", "tenant", "key", "priority", "run_at", "max_attempts", "timeout", "result_ttl", "headers")
    assert {name: getattr(found, name) for name in same} == {name: getattr(row, name) for name in same}
    assert found.expires_at - found.enqueued_at == row.expires
    assert (delayed.run_at - delayed.enqueued_at, delayed.cells) == (later.delay, {})
    assert shop.run("SELECT metadata IS NULL AND parameters IS NOT NULL FROM headrace.jobs ORDER BY id") == [
        True,
        False,
    ]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 40])
async def test_headers_of_any_number(shop: Shop, count: int) -> None:
    headers = {f"name {n}": "v" * n for n in range(count)}
    [(_, job_id, *_)] = enqueue(shop, {"task": "extract", "headers": headers})
    assert (await stored(shop, job_id)).headers == headers


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("null", "expected a job or an array of jobs, got null"),
        ("7", "expected a job or an array of jobs, got 7"),
        ("[7]", "job 1: expected an object, got 7"),
        ("{}", "job 1: expected a task, got none"),
        ({"task": None}, "job 1: expected a task, got none"),
        ({"task": 5}, "task: expected text, got 5"),
        ({"task": ""}, "task: expected 1 to 1024 bytes in UTF-8, got 0"),
        ({"task": "ü" * 513}, "task: expected 1 to 1024 bytes in UTF-8, got 1026"),
        ({"task": "t", "queue": ""}, "queue: expected 1 to 1024 bytes"),
        ({"task": "t", "queue": ["q"]}, r'queue: expected text, got \["q"\]'),
        ({"task": "t", "key": 5}, "key: expected text, got 5"),
        ({"task": "t", "tennant": "a"}, 'unknown key "tennant"'),
        ({"task": "t", "key": "k", "on_duplicate": "swap"}, 'on_duplicate: expected "keep", "replace", .* got "swap"'),
        ({"task": "t", "args": [1]}, r"args: expected an object, got \[1\]"),
        ({"task": "t", "args": "{}"}, 'args: expected an object, got "{}"'),
        ({"task": "t", "id": "7"}, 'id: expected a UUID, got "7"'),
        ({"task": "t", "id": "z" * 32}, "id: expected a UUID"),
        ({"task": "t", "priority": 1.5}, "priority: expected a whole number from -32768 to 32767, got 1.5"),
        ({"task": "t", "priority": 32_768}, "priority: expected a whole number from -32768 to 32767, got 32768"),
        ({"task": "t", "priority": "1"}, "priority: expected a whole number"),
        ({"task": "t", "max_attempts": 0}, "max_attempts: expected a whole number from 1 to"),
        ({"task": "t", "delay": -1}, "delay: expected a length of time of at most ten years, got -1"),
        ({"task": "t", "delay": "soon"}, 'delay: expected a length of time of at most ten years, got "soon"'),
        ({"task": "t", "delay": True}, "delay: expected a length of time"),
        ({"task": "t", "delay": 1e300}, "delay: expected a length of time"),
        ({"task": "t", "delay": "-1s"}, "delay: expected a length of time"),
        ({"task": "t", "expires": "11 years"}, "expires: expected a length of time"),
        ({"task": "t", "timeout": {}}, "timeout: expected a length of time"),
        ({"task": "t", "run_at": "2027-01-15 08:00"}, 'run_at: .* time zone, got "2027-01-15 08:00" without an offset'),
        ({"task": "t", "run_at": "2027-01-15T08:00:00.5"}, "run_at: .* without an offset"),
        ({"task": "t", "run_at": "2027-13-15 08:00Z"}, "run_at: expected a time"),
        ({"task": "t", "run_at": "tomorrow"}, "run_at: expected a time"),
        ({"task": "t", "run_at": "infinity"}, "run_at: expected a time"),
        ({"task": "t", "run_at": "1969-12-31T23:59:59Z"}, "run_at: expected a time after 1970"),
        ({"task": "t", "run_at": 1_800_000_000}, "run_at: expected a time"),
        ({"task": "t", "run_at": "2027-01-15T08:00Z", "delay": 0}, "expected run_at or delay, got both"),
        ({"task": "t", "headers": {"a": 1}}, "headers: expected texts by name"),
        ({"task": "t", "headers": ["a"]}, "headers: expected texts by name"),
        ({"task": "t", "headers": {"a": "x" * 8_200}}, "headers: expected at most 8192 bytes"),
        ({"task": "t", "on_failed": "no"}, 'on_failed: expected "run" or "return", got "no"'),
        ({"task": "t", "unique": "10m"}, 'unique: expected "until done" or "while pending", got "10m"'),
        ({"task": "t", "cells": []}, "cells: expected an object"),
        ({"task": "t", "cells": {"params": ""}}, 'cells: unknown key "params"'),
        ({"task": "t", "cells": {"blob": 5}}, "cells: blob: expected bytes in base64, got 5"),
        ({"task": "t", "cells": {"blob": "%"}}, "decoding base64"),
        ({"task": "t", "args": {}, "cells": {"parameters": ""}}, "as they are or as cells, got both"),
        ({"task": "t", "headers": {}, "cells": {"headers": ""}}, "as they are or as cells, got both"),
        ({"task": "t", "args": {"a": json.loads("[" * 64 + "]" * 64)}}, "args: nested deeper than 64"),
    ],
)  # fmt: skip
async def test_what_is_refused(shop: Shop, job: dict[str, Any] | str, said: str) -> None:
    """With a word on what was expected, and nothing stored, the good jobs beside it included."""
    with pytest.raises(errors.InvalidParameterValue, match=said):
        enqueue(shop, job)
    if isinstance(job, dict):
        with pytest.raises(
            errors.InvalidParameterValue, match="base64" if "base64" in said and "got" not in said else "job 2: "
        ):
            enqueue(shop, {"task": "t"}, job)
    assert shop.jobs == []


@pytest.mark.parametrize(
    "text",
    ['{"task": "\\u0000"}', '{"task": "\\ud800"}', '{"task": "t"', "", '{"a":' + "[" * 10_000 + "]" * 10_000 + "}"],
)
async def test_what_is_no_json(shop: Shop, text: str) -> None:
    with pytest.raises((errors.DataError, errors.StatementTooComplex)):
        enqueue(shop, text)
    assert shop.jobs == []


async def test_hints_say_what_is_wrong(shop: Shop) -> None:
    with pytest.raises(errors.InvalidParameterValue) as unknown:
        enqueue(shop, {"task": "t", "tennant": "a"})
    assert "There are: task, queue, args" in str(unknown.value.diag.message_hint)
    with pytest.raises(errors.InvalidParameterValue) as many:
        enqueue(shop, json.dumps([{"task": "t"}] * 10_001))
    assert "at most 10000 jobs, got 10001" in str(many.value)
    with pytest.raises(errors.InvalidParameterValue, match="got NULL"):
        shop.run("SELECT * FROM headrace.enqueue_v1(NULL)")
    assert shop.jobs == []


@pytest.mark.parametrize("job", [{"task": "t", "tennant": "a"}, {"task": "t", "delay": "soon"}, {"task": 5}, {}])
async def test_an_error_is_short(shop: Shop, job: dict[str, Any]) -> None:
    """What psql shows of it: not each statement on the way to where it was found."""
    command = [str(BINARIES / "psql"), "-X", shop.url, "-c", f"SELECT headrace.enqueue_v1('{json.dumps(job)}')"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.stderr.startswith("ERROR:  job 1: ")
    assert len(done.stderr.splitlines()) <= 5, done.stderr


async def test_arguments_that_the_task_does_not_take(shop: Shop) -> None:
    """SQL does not know the task: its worker refuses them, and the job lies with the dead letters."""
    [(_, job_id, *_)] = enqueue(shop, {"task": "extract", "queue": "extracts", "args": {"uid": 7}})
    [(_, none_given, *_)] = enqueue(shop, {"task": "extract", "queue": "extracts"})
    await shop.drain()
    info = await stored(shop, job_id)
    assert (info.state, info.reason) == (JobState.FAILED, "payload cannot be used")
    assert "Expected `str`, got `int` - at `$.uid`" in info.failures[-1].message
    assert (await stored(shop, none_given)).state is JobState.FAILED
    assert shop.ran == []


async def test_numbers_keep_their_digits(shop: Shop) -> None:
    seen: list[Any] = []

    @shop.app.task(name="count")
    async def count(whole: int, part: float, text: str) -> None:
        seen.append((whole, part, text))

    job = '{"task": "count", "args": {"whole": 9007199254740993, "part": 0.1, "text": "a\\n\\"ü\\u2028{"}}'
    enqueue(shop, job)
    await shop.drain()
    assert seen == [(9007199254740993, 0.1, 'a\n"ü\u2028{')]


async def test_workers_are_woken_at_the_commit(shop: Shop) -> None:
    """Not before, and not for nothing."""
    store = shop.app.client._backend
    async with shop.app:
        assert store.hints is not None
        async with store.hints.listen(["queue:ü:rolled back", "queue:ü:committed"]) as hints:
            async with await psycopg.AsyncConnection.connect(shop.url) as connection:
                bound, task = shop.app.bind(connection), shop.extract
                await bound.enqueue(task.options(queue="ü:rolled back"), "a")
                await connection.rollback()
                await bound.enqueue(task.options(queue="ü:committed"), "a")
            async with asyncio.timeout(60):
                assert (await anext(hints)).topic == "queue:ü:committed"


async def test_the_server_makes_the_names_of_channels_that_clients_make(shop: Shop) -> None:
    for topic in ("queue:q", "inbox:ü'\"%", "queue:" + "x" * 1_024):
        with psycopg.connect(shop.url) as connection:
            connection.execute("SET LOCAL search_path = headrace")
            [[found]] = connection.execute("SELECT channel(%s)", (topic,)).fetchall()
        assert found == channel("headrace", topic)


async def test_temporary_tables_of_the_caller_are_none_of_ours(shop: Shop) -> None:
    """Whatever they are called: jobs go where jobs are."""
    names = shop.run("SELECT tablename FROM pg_tables WHERE schemaname = 'headrace'")
    with psycopg.connect(shop.url) as connection:
        for name in names:
            copy = sql.SQL("CREATE TEMP TABLE {} (LIKE {} INCLUDING ALL)")
            connection.execute(copy.format(sql.Identifier(name), sql.Identifier("headrace", name)))
        shop.app.bind(connection).enqueue(shop.extract.options(key="k"), "a")
    assert shop.jobs == ["extract"]
    await shop.drain()
    assert shop.ran == [("a", 0)]


async def test_of_many_transactions_few_notify(shop: Shop) -> None:
    """A commit that does waits for all others that do; workers hear of every job all the same."""
    store = shop.app.client._backend
    async with shop.app, AsyncExitStack() as stack:
        assert store.hints is not None
        topics = [f"queue:{n}" for n in range(12)]
        async with store.hints.listen(topics) as hints:
            open_ones = [await psycopg.AsyncConnection.connect(shop.url) for _ in topics]
            for connection in open_ones:
                stack.push_async_callback(connection.close)
            for n, connection in enumerate(open_ones):
                await shop.app.bind(connection).enqueue(shop.extract.options(queue=str(n)), "a")
            rung = [await connection.execute("SELECT count(*) FROM headrace.bells") for connection in open_ones]
            assert sum([(await cursor.fetchall())[0][0] for cursor in rung]) >= 8
            for connection in open_ones:
                await connection.commit()
            heard = set()
            async with asyncio.timeout(60):
                while len(heard) < len(topics):
                    heard.add((await anext(hints)).topic)
    assert heard == set(topics)


async def test_a_hint_is_relayed_however_long_its_transaction_lasts(shop: Shop) -> None:
    """Also after those who relay have begun to stop."""
    store = shop.app.client._backend
    async with shop.app, await psycopg.AsyncConnection.connect(shop.url) as slow:
        assert store.hints is not None
        async with store.hints.listen(["queue:slow", "queue:quick"]) as hints:
            async with asyncio.timeout(30):
                async with await psycopg.AsyncConnection.connect(shop.url) as quick:
                    await shop.app.bind(quick).enqueue(shop.extract.options(queue="quick"), "a")
                assert (await anext(hints)).topic == "queue:quick"
                while not shop.run("SELECT holder FROM headrace.relay WHERE until > 0"):
                    await asyncio.sleep(0.01)
                await shop.app.bind(slow).enqueue(shop.extract.options(queue="slow"), "a")
                while not shop.run("SELECT holder FROM headrace.relay WHERE ends IS NOT NULL"):
                    await asyncio.sleep(0.01)
                await slow.commit()
                assert (await anext(hints)).topic == "queue:slow"


async def test_of_many_listeners_few_ask_whether_to_relay(shop: Shop) -> None:
    """And one does."""
    async with shop.app, AsyncExitStack() as stack:
        store = shop.app.client._backend
        assert store.hints is not None
        heard = [await stack.enter_async_context(store.hints.listen(["queue:new"])) for _ in range(20)]
        waiting = [asyncio.create_task(anext(hints)) for hints in heard]
        async with await psycopg.AsyncConnection.connect(shop.url) as connection:
            await shop.app.bind(connection).enqueue(shop.extract.options(queue="new"), "a")
        async with asyncio.timeout(30):
            assert {(await hint).topic for hint in waiting} == {"queue:new"}
            while not shop.run("SELECT holder FROM headrace.relay WHERE until > 0"):
                await asyncio.sleep(0.01)


async def test_a_key_until_its_job_has_started_or_ended(shop: Shop) -> None:
    """From SQL, and through a transaction of one's own."""
    [(_, first, status, *_)] = enqueue(shop, {"task": "extract", "queue": "extracts", "key": "k", "args": {"uid": "a"}})
    assert status == "new"
    async with shop.app:
        backend = await shop.app.client.backend()
        [running] = (await backend.claim(Claim("holder", ("extracts",), 1, 30_000_000))).jobs
        assert running.id == first.bytes
        job = {"task": "extract", "queue": "extracts", "key": "k", "args": {"uid": "b"}}
        assert enqueue(shop, job | {"unique": "until done"})[0][2] == "duplicate"
        assert enqueue(shop, job | {"unique": "while pending"})[0][2] == "new"
        with psycopg.connect(shop.url) as connection:
            bound = shop.app.bind(connection)
            pending = shop.extract.options(key="k", unique="while pending")
            assert bound.enqueue(pending, "c").duplicate
            once = shop.extract.options(key="other", unique="until done")
            assert not bound.enqueue(once, "d").duplicate
            assert bound.enqueue(once, "e").duplicate
