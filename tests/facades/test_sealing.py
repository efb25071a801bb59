"""With keys, a store holds nothing that it could read, and gives back nothing that was tampered with."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from textwrap import dedent
from typing import Any

import psycopg
import pytest
import redis
from msgspec.structs import replace

from headrace import App, Done, Every, Job, JobState, NewJob, Patch, Queue, Retry, Sections, immediate
from headrace.api.info import DETAILS
from headrace.core.clock import ManualClock
from headrace.errors import ConfigError, InvalidJob, JobFailed, SealError
from headrace.payloads.codec import JSON, SEALED, Envelope
from headrace.seam.records import Record, Requeue, Row, Selector
from headrace.types import Encoded
from tests import postgres, valkey
from tests.facades.harness import WITH_STREAMS, Store, within, working

CANARY = "canary-7f3a"
PLAIN = Envelope(max_size=100, compress_over=None)
KEYS = {"spring": bytes(range(32)), "autumn": bytes(range(32, 64))}


def listed(*names: str) -> str:
    return ",".join(f"{name}:{b64encode(KEYS[name]).decode()}" for name in names)


@pytest.fixture(params=WITH_STREAMS)
async def store(request: Any, tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(request.param, tmp_path)
    yield store
    await store.close()


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPRING", listed("spring"))
    monkeypatch.setenv("BOTH", listed("spring", "autumn"))
    monkeypatch.setenv("AUTUMN_FIRST", listed("autumn", "spring"))
    monkeypatch.setenv("AUTUMN", listed("autumn"))


def sealing(keys: str = "SPRING", **more: Any) -> dict[str, Any]:
    return {"payloads": {"sealing": {"keys": f"env:{keys}", **more}}}


async def stored(app: App) -> list[Record]:
    """Every job with everything that the store has of it."""
    backend = await app.client.backend()
    found = await app.client.list_jobs(Selector(), limit=1_000)
    records = await backend.fetch([info.id.bytes for info in found], DETAILS, app.client.clock.stamp())
    return [record for record in records if record is not None]


def in_the_clear(records: list[Record]) -> list[tuple[str, bytes]]:
    """The cells and results that are not sealed, or that show the canary."""
    cells = [(name, cell) for record in records for name, cell in record.cells.items()]
    cells += [("result", record.result) for record in records if record.result is not None]
    return [(name, cell) for name, cell in cells if cell[0] != SEALED or CANARY.encode() in cell]


class TestRoundTrip:
    async def test_tasks(self, store: Store) -> None:
        app = store.app(**sealing())

        @app.task
        async def hello(name: str) -> str:
            return f"hello {name}"

        @app.task
        async def nothing() -> None: ...

        greet = hello.options(tenant="acme")
        async with working(app):
            first = await greet.enqueue(CANARY)
            assert await within(first.result()) == f"hello {CANARY}"
            assert await within(greet.call(CANARY)) == f"hello {CANARY}"
            again = await greet.options(key="k").enqueue(CANARY)
            await within(again.result())
            done = await greet.options(key="k", tenant="other").enqueue(CANARY)
            assert (done.duplicate, await within(done.result())) == (True, f"hello {CANARY}")
            assert await within(nothing.call()) is None
        info = await first.info()
        assert (info.args, info.result) == ({"name": CANARY}, f"hello {CANARY}")
        records = await stored(app)
        assert len(records) == 4
        assert in_the_clear(records) == []

    async def test_sections_patches_and_spawned_jobs(self, store: Store) -> None:
        app, seen = store.app(**sealing()), []

        @app.task(retry=immediate(3))
        async def work(job: Job[Any]) -> Done | Retry:
            seen.append(dict(job.sections))
            if job.attempt == 0:
                return Retry(0, patch=Patch(sections=Sections(vm_state=CANARY.encode() + b"2", blob=None)))
            return Done(spawn=[child.job(CANARY)])

        @app.task
        async def child(text: str) -> None:
            seen.append({"text": text})

        canary = CANARY.encode()
        sections = Sections(vm_state=canary, metadata=b"", blob=canary * 100)
        await app.client.insert([NewJob(task=work.name, sections=sections, tenant="acme", max_attempts=3)])
        assert in_the_clear(await stored(app)) == []
        await within(app.drain())
        assert seen == [
            {"vm_state": canary, "metadata": b"", "blob": canary * 100},
            {"vm_state": canary + b"2", "metadata": b""},
            {"text": CANARY},
        ]
        assert in_the_clear(await stored(app)) == []

    async def test_batches_and_queues(self, store: Store) -> None:
        app = store.app(**sealing())
        client = store.client(**sealing())
        queue: Queue[Any, Any] = Queue("notes", client)

        @app.batch(size=10)
        async def many(jobs: list[Job[str]]) -> list[Any]:
            return [Done(job.payload * 2) for job in jobs]

        @queue.execute
        async def note(job: Job[Any]) -> Any:
            return [job.payload]

        async with working(app), queue:
            assert await within(many.call(CANARY)) == CANARY * 2
            assert await within(queue.enqueue_and_wait("one", CANARY)) == [CANARY]
            assert await within(queue.enqueue_and_wait("one", "ignored")) == [CANARY]
            answer = await queue.enqueue("one", "ignored")
            assert answer.result == [CANARY]  # type: ignore[union-attr]
            assert await queue.result("one") == [CANARY]
        assert in_the_clear(await stored(app)) == []

    async def test_large_and_compressed(self, store: Store) -> None:
        """In a thread, where it is compressed first; then sealed."""
        app = store.app(**sealing())
        large = CANARY * 20_000

        @app.task
        async def echo(job: Job[Any], text: str) -> str:
            return text + job.sections.get("blob", b"").decode()

        async with working(app):
            assert await within(echo.call(large)) == large
            [done] = await app.client.insert(
                [NewJob(task=echo.name, args={"text": "x"}, sections=Sections(blob=large.encode()))]
            )
            assert len((await within(app.client.wait(done.id))).result or b"") < 10_000
        records = await stored(app)
        assert in_the_clear(records) == []
        assert max(len(cell) for record in records for cell in record.cells.values()) < 10_000

    async def test_schedules(self, store: Store) -> None:
        clock = ManualClock(1_800_000_000_000_000)
        app, ran = store.app(clock=clock, **sealing()), []

        @app.task
        async def tick(text: str) -> None:
            ran.append(text)

        first = await app.schedules.put(Every("30s", tick.options(tenant="acme").job(CANARY), name="tick", jitter=0))
        assert first.args == {"text": CANARY}
        clock.advance("1s")
        again = await app.schedules.put(Every("30s", tick.options(tenant="acme").job(CANARY), name="tick", jitter=0))
        assert again.updated_at == first.updated_at
        for _ in range(3):
            clock.advance("30s")
            await within(app.drain())
        assert ran == [CANARY] * 3
        assert in_the_clear(await stored(app)) == []

    async def test_what_waits_for_a_failed_job_gets_its_payload(self, memory: Store) -> None:
        app = memory.app(**sealing())

        @app.task(retry=immediate(1))
        async def fail(text: str) -> None:
            raise ValueError("no")

        handle = await fail.enqueue(CANARY)
        await within(app.drain())
        with pytest.raises(JobFailed) as caught:
            await handle.result()
        assert caught.value.payload == {"text": CANARY}


def with_parameters(row: Row, cell: bytes) -> Row:
    return replace(row, cells={"parameters": cell})


TAMPERED: dict[str, Callable[[Row, Row, Row], Row]] = {
    "of another job": lambda mine, other, foreign: replace(mine, cells=other.cells),
    "of another tenant": lambda mine, other, foreign: replace(mine, cells=foreign.cells),
    "moved to another tenant": lambda mine, other, foreign: replace(mine, tenant="rival"),
    "of another section": lambda mine, other, foreign: with_parameters(mine, mine.cells["vm_state"]),
    "cut short": lambda mine, other, foreign: with_parameters(mine, mine.cells["parameters"][:-1]),
    "longer": lambda mine, other, foreign: with_parameters(mine, mine.cells["parameters"] + b"x"),
    "in plain": lambda mine, other, foreign: with_parameters(mine, b'{"n":6661337666}'),
    "in an envelope": lambda mine, other, foreign: with_parameters(mine, PLAIN.wrap(b'{"n":6661337666}', JSON, "x")),
}
"""What somebody could do who can write to the store, but has no key."""


class TestTampering:
    @pytest.mark.parametrize("kind", ["task", "job", "batch"])
    async def test_what_was_tampered_with_fails_its_job_and_no_other(self, store: Store, kind: str) -> None:
        app, seen = store.app(**sealing()), []
        if kind == "batch":

            @app.batch(name="note")
            async def note_all(jobs: list[Job[dict[str, int]]]) -> None:
                seen.extend(job.payload["n"] for job in jobs)
        elif kind == "job":

            @app.task(name="note")
            async def note_job(job: Job[Any], n: int) -> None:
                seen.append(n)
        else:

            @app.task(name="note")
            async def note(n: int) -> None:
                seen.append(n)

        def packed(n: int, tenant: str) -> Row:
            job = NewJob(task="note", args={"n": n}, sections=Sections(vm_state=b'{"n":6661337666}'), tenant=tenant)
            return app.client.packer.pack(job)

        backend = await app.client.backend()
        bad = {
            how: tamper(packed(1, "acme"), packed(2, "acme"), packed(3, "rival")) for how, tamper in TAMPERED.items()
        }
        await backend.insert([*bad.values(), packed(7, "acme")], app.client.clock.stamp())
        await within(app.drain())
        assert seen == [7]
        for how, row in bad.items():
            info = await app.get(row.id)
            assert (info.state, info.attempt, info.reason) == (JobState.FAILED, 1, "payload cannot be used"), how
            assert info.failures[0].type == "SealError", how
            assert "6661337666" not in f"{info.failures}", how

    async def test_a_section_that_was_swapped(self, store: Store) -> None:
        app, seen = store.app(**sealing()), []

        @app.task(name="note")
        async def note(job: Job[Any], n: int) -> None:
            seen.append(n)

        row = app.client.packer.pack(
            NewJob(task="note", args={"n": 1}, sections=Sections(vm_state=b"state", blob=b"blob"))
        )
        swapped = replace(row, cells=row.cells | {"vm_state": row.cells["blob"], "blob": row.cells["vm_state"]})
        await (await app.client.backend()).insert([swapped], app.client.clock.stamp())
        await within(app.drain())
        info = await app.get(row.id)
        assert (seen, info.state, info.failures[0].type) == ([], JobState.FAILED, "SealError")
        assert "vm_state: does not open" in info.failures[0].message

    async def test_results(self, memory: Store) -> None:
        app = memory.app(**sealing())

        @app.task
        async def double(n: int) -> int:
            return n * 2

        async with app:
            first, second = [await double.enqueue(n) for n in (1, 2)]
            await app.drain()
            jobs = memory._memory.jobs
            mine, theirs = jobs[first.id.bytes], jobs[second.id.bytes]
            mine.result, theirs.result = theirs.result, PLAIN.wrap(b"666", JSON, "x")
            for handle in (first, second):
                with pytest.raises(SealError, match=r"^result: "):
                    await handle.result()
                assert str((await handle.info()).result).startswith("<result: ")

    async def test_nobody_reads_without_keys(self, store: Store) -> None:
        app, plain = store.app(**sealing()), store.app()

        @app.task(name="note")
        async def note(text: str) -> str:
            return text

        handle = await note.enqueue(CANARY)
        await within(app.drain())
        info = await plain.get(handle.id)
        assert info.args == "<parameters: it is sealed, and this process has no keys; set payloads.sealing.keys>"
        assert str(info.result).startswith("<result: it is sealed")

    async def test_a_worker_without_keys_quarantines(self, store: Store) -> None:
        app, plain, ran = store.app(**sealing()), store.app(), []
        await app.client.insert([NewJob(task="note", args={"text": CANARY})])

        @plain.task(name="note")
        async def note(text: str) -> None:
            ran.append(text)

        await within(plain.drain())
        [info] = await plain.client.list_jobs(Selector())
        info = await plain.get(info.id)
        assert (ran, info.state, info.reason) == ([], JobState.FAILED, "payload cannot be used")
        assert info.failures[0].type == "SealError"


class TestChangingOver:
    async def test_what_is_not_sealed_is_refused_unless_told(self, store: Store) -> None:
        [job] = await store.app().client.insert([NewJob(task="note", args={"n": 1})])

        def app_with(**more: bool) -> App:
            app = store.app(**sealing(**more))

            @app.task(name="note")
            async def note(n: int) -> int:
                return n + 1

            return app

        strict, lenient = app_with(), app_with(read_unsealed=True)
        await within(strict.drain())
        info = await strict.get(job.id)
        assert (info.state, info.failures[0].type) == (JobState.FAILED, "SealError")
        assert "set payloads.sealing.read_unsealed" in info.failures[0].message
        await lenient.client.alter(Selector(ids=[job.id]), Requeue())
        await within(lenient.drain())
        info = await lenient.get(job.id)
        assert (info.state, info.args, info.result) == (JobState.COMPLETED, {"n": 1}, 2)
        assert [name for name, _ in in_the_clear(await stored(lenient))] == ["parameters"]

    async def test_a_sealed_cell_is_not_packed_again(self, memory: Store) -> None:
        app = memory.app(**sealing())
        row = app.client.packer.pack(NewJob(task="t", args={"n": 1}))
        with pytest.raises(InvalidJob, match="parameters: expected a payload in plain, got one that is sealed"):
            app.client.packer.pack(NewJob(task="t", args=Encoded(row.cells["parameters"])))

    async def test_keys_are_looked_at_when_the_app_is_made(self, memory: Store) -> None:
        with pytest.raises(ConfigError, match=r"^payloads\.sealing\.keys: .* NO_KEYS, but it is not set"):
            memory.app(**sealing("NO_KEYS"))


class TestRotation:
    async def test_a_retired_key_opens_nothing(self, store: Store) -> None:
        """Until the worker gets it back, and the job is requeued."""
        [job] = await store.app(**sealing("SPRING")).client.insert([NewJob(task="note", args={"n": 1})])
        for keys, ended in (("AUTUMN", JobState.FAILED), ("AUTUMN_FIRST", JobState.COMPLETED)):
            app = store.app(**sealing(keys))

            @app.task(name="note")
            async def note(n: int) -> int:
                return n + 1

            await within(app.drain())
            info = await app.get(job.id)
            assert info.state is ended
            if ended is JobState.FAILED:
                assert (info.reason, info.failures[0].type) == ("payload cannot be used", "UnknownKey")
                assert str(info.args).startswith("<parameters: sealed with key 'spring'; expected one of those")
                await app.client.alter(Selector(ids=[job.id]), Requeue())
        assert info.result == 2

    async def test_readable_throughout(self, store: Store) -> None:
        """Readers get the new key first; then writers seal with it; then the old one goes. Jobs run all the time."""
        results: dict[int, int] = {}
        made = 0

        def app_with(keys: str) -> App:
            app = store.app(**sealing(keys), worker={"concurrency": 5})

            @app.task(name="double")
            async def double(n: int) -> int:
                return n * 2

            return app

        async def produce(app: App, goal: int) -> None:
            nonlocal made
            while len(results) < goal:
                made += 1
                n = made
                results[n] = await within(app.tasks["double"].call(n))

        async def phase(writers: list[str], readers: list[str]) -> None:
            """Until 20 more results are there."""
            goal = len(results) + 20
            async with AsyncExitStack() as workers, asyncio.TaskGroup() as producers:
                for keys in readers:
                    await workers.enter_async_context(working(app_with(keys)))
                for keys in writers:
                    producers.create_task(produce(app_with(keys), goal))

        await phase(["SPRING"], ["SPRING"])
        await phase(["SPRING", "BOTH"], ["SPRING", "BOTH"])
        await phase(["BOTH", "AUTUMN_FIRST"], ["BOTH", "AUTUMN_FIRST"])
        await phase(["AUTUMN_FIRST"], ["AUTUMN_FIRST"])
        assert results == {n: n * 2 for n in range(1, made + 1)}
        last = app_with("AUTUMN_FIRST")
        records = await stored(last)
        assert len(records) == made
        assert in_the_clear(records) == []
        for record in records:
            assert last.client.packer.envelope.readable(record.result, "result", record.id) == results[
                last.client.packer.envelope.readable(record.cells["parameters"], "parameters", record.id)["n"]
            ]  # fmt: skip


def raw(store: Store, directory: Path) -> bytes:
    """Everything that a store has on its disk or in its memory; bytes may be written in hex."""
    match store.kind:
        case "sqlite":
            return b"".join(file.read_bytes() for file in directory.glob("jobs.db*"))
        case "postgres":
            with psycopg.connect(postgres.server().url()) as connection:
                tables = (
                    "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'"
                )
                names = [name for [name] in connection.execute(tables, (postgres.SCHEMA,))]
                rows = [connection.execute(f"SELECT t::text FROM {name} AS t").fetchall() for name in names]
            return str(rows).encode()
    with redis.Redis.from_url(valkey.server().url()) as client:
        read = {
            b"string": client.get,
            b"hash": client.hgetall,
            b"set": client.smembers,
            b"list": lambda key: client.lrange(key, 0, -1),
            b"zset": lambda key: client.zrange(key, 0, -1),
        }
        found: list[Any] = [read[client.type(key)](key) for key in client.scan_iter()]
    return repr(found).encode()


@pytest.mark.parametrize("store", ["sqlite", "postgres", "valkey"], indirect=True)
async def test_a_thousand_canaries_are_nowhere(store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """X09: neither in the store, nor in logs; nor in what is told of jobs that cannot be read."""
    caplog.set_level(logging.DEBUG)
    app, told = store.app(**sealing()), []

    @app.task(name="work", retry=immediate(2))
    async def work(job: Job[Any], text: str) -> Any:
        if job.attempt == 0:
            return Retry(0, patch=Patch(sections=Sections(vm_state=b"canary-in-state-%d" % job.priority)))
        return f"canary-in-result-{text}"

    app.observe(told.append)
    jobs = [
        NewJob(
            task="work",
            args={"text": f"canary-in-args-{n}"},
            sections=Sections(blob=b"canary-in-blob-%d" % n, metadata=b"canary-in-metadata-%d" % n),
            priority=n,
            tenant=f"tenant {n % 3}",
        )
        for n in range(200)
    ]
    await app.schedules.put(Every("1h", work.job("canary-in-template"), name="later"))
    await app.client.insert(jobs)
    bad = [replace(app.client.packer.pack(job), tenant="rival") for job in jobs[:20]]
    await (await app.client.backend()).insert(bad, app.client.clock.stamp())
    await within(app.drain())
    records = await stored(app)
    assert [record.state for record in records].count(JobState.COMPLETED) == 200
    assert [record.state for record in records].count(JobState.FAILED) == 20
    canaries = re.compile(b"canary|" + b"canary".hex().encode())
    assert not canaries.search(raw(store, tmp_path))
    await store.app().client.insert([NewJob(task="work", args={"text": "canary-in-plain"})])
    assert canaries.search(raw(store, tmp_path))
    assert "canary" not in caplog.text
    unread = [event for event in told if event.error is not None]
    assert len(unread) == 20
    assert "canary" not in str(unread)


def test_the_command_line_has_the_keys_from_the_settings(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from headrace import App\n"
        "app = App('sqlite:///jobs.db')\n"
        "@app.task\n"
        "async def note(text: str) -> str:\n    return text.upper()\n"
    )

    def headrace(*args: str, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "headrace", *args],
            cwd=tmp_path,
            env={"PATH": "", "PYTHONPATH": str(tmp_path), "SPRING": listed("spring"), **env},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    keys = {"HEADRACE_PAYLOADS__SEALING__KEYS": "env:SPRING"}
    job_id = headrace("enqueue", "--app", "shop:app", "shop.note", "--arg", f'text="{CANARY}"', **keys).split()[0]
    told = headrace("worker", "shop:app", "--burst", **keys)
    assert CANARY not in told
    assert CANARY.encode() not in b"".join(file.read_bytes() for file in tmp_path.glob("jobs.db*"))
    shown = headrace("job", "show", "--app", "shop:app", job_id, **keys)
    assert CANARY in shown
    assert CANARY.upper() in shown
    hidden = headrace("job", "show", "--app", "shop:app", job_id)
    assert CANARY not in hidden
    assert CANARY.upper() not in hidden
    assert "sealed" in hidden


def test_cryptography_is_needed_with_keys_only() -> None:
    code = """
        import sys
        sys.modules["cryptography"] = None  # as if it were not installed
        from headrace import App
        App("memory://")
        try:
            App("memory://", payloads={"sealing": {"keys": "env:JOB_KEYS"}})
        except Exception as error:
            print(type(error).__name__, error)
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("ConfigError sealing needs cryptography")
    assert "pip install 'headrace[sealing]'" in done.stdout


async def test_replaced_arguments_open_in_the_job_that_waits(store: Store) -> None:
    """They are bound to the tenant, not to the job that brought them; a job of another tenant does not open them."""
    app, seen = store.app(**sealing()), list[str]()

    @app.task(name="t")
    async def run(text: str) -> None:
        seen.append(text)

    keyed = run.options(key="k", tenant="acme", on_duplicate="replace")
    async with app:
        first = await run.options(key="k", tenant="acme", delay="1h").enqueue("one")
        assert (await keyed.enqueue(CANARY)).replaced
        [record] = await stored(app)
        assert record.id == first.id.bytes
        assert CANARY.encode() not in record.cells["parameters"]
        assert (await app.get(first.id)).args == {"text": CANARY}
        with pytest.raises(SealError):
            app.client.packer.envelope.unwrap(record.cells["parameters"], "parameters", first.id.bytes, "umbrella")
        await app.drain()
    assert seen == [CANARY]
