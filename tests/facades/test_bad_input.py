"""Bad input at every public entry: a typed error that says what was expected and what came, and nothing stored."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar
from unicodedata import category
from uuid import UUID

import msgspec
import pytest

from headrace import (
    App,
    Job,
    NewJob,
    Queue,
    Queued,
    Sections,
    Settings,
    SyncApp,
    connect,
    content_id,
    exponential,
    forever,
    immediate,
    never,
)
from headrace.core.clock import ManualClock
from headrace.core.config import WorkerSettings
from headrace.errors import ConfigError, HeadraceError, InvalidJob, JobNotFound
from headrace.seam.records import (
    Cancel,
    Hold,
    JobKey,
    Move,
    Pause,
    Reprioritise,
    Reschedule,
    Selector,
    Watch,
)
from headrace.types import JobState
from tests.facades.harness import Store, serving, settings, within
from tests.postgres import server

HUGE = 10**5_000
"""A number that Python refuses to print."""


def complaint(error: HeadraceError, about: str) -> str:
    """What is wrong with a refusal, if anything: its message must be short, of one line, and name what it is about."""
    message = str(error)
    if about not in message:
        return f"does not mention {about!r}: {message:.200}"
    if len(message) > 600 or "\n" in message:
        return f"is {len(message)} characters long, in {message.count(chr(10)) + 1} lines"
    return "" if error.to_dict()["code"] else "has no code"


def shown(value: Any) -> str:
    try:
        return f"{value!r:.60}"
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} that cannot be shown"


async def refused(values: Iterable[Any], attempt: Callable[[Any], Any], about: str = "") -> None:
    """Every one of the values is refused, with a typed error that is worth reading."""
    wrong: dict[str, str] = {}
    for value in values:
        try:
            made = attempt(value)
            if inspect.isawaitable(made):
                await within(made)
        except HeadraceError as error:
            if problem := complaint(error, about):
                wrong[shown(value)] = f"{type(error).__name__} {problem}"
        except Exception as error:
            wrong[shown(value)] = f"{type(error).__name__}: {error}"
        else:
            wrong[shown(value)] = "accepted"
    assert not wrong


class Unset(tzinfo):
    """A time zone that does not say."""

    def utcoffset(self, when: datetime | None) -> None:
        return None

    def tzname(self, when: datetime | None) -> None:
        return None

    def dst(self, when: datetime | None) -> None:
        return None


BAD_NAMES: list[Any] = ["a\0b", "x" * 1_025, "é" * 513, "\ud800", "a\udfffb", 5, b"bytes", None, ["x"]]
BAD_LENGTHS: list[Any] = [
    -1,
    -0.001,
    "-1s",
    timedelta(seconds=-1),
    math.nan,
    math.inf,
    -math.inf,
    10**12,
    -(10**12),
    "99999d",
    timedelta.max,
    "",
    "s",
    "10",
    "10 parsecs",
    "1h30",
    "1e3s",
    "nan",
    True,
    b"10s",
    [10],
    Decimal(10),
]
BAD_DATES: list[Any] = [
    datetime(2030, 1, 1),
    datetime(1969, 12, 31, tzinfo=UTC),
    datetime.min.replace(tzinfo=UTC),
    "2030-01-01T00:00:00Z",
    1_900_000_000,
    math.nan,
]
BAD_PRIORITIES: list[Any] = [-32_769, 32_768, 2**63, 1.0, "1", True, None, math.nan]
BAD_ATTEMPTS: list[Any] = [0, -1, True, False, 1.5, "3", 2**31, math.nan]
BAD_HEADERS: list[Any] = [{"a": 1}, {1: "a"}, {"a": None}, ["a"], "a", {"a": "\ud800"}, {"a": "x" * 9_000}, 5]


def _deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@dataclasses.dataclass
class Measured:
    value: float | None


class Reading(msgspec.Struct):
    value: float | None


BAD_VALUES: list[Any] = [
    math.nan,
    math.inf,
    -math.inf,
    {"a": [1, {"b": math.nan}]},
    {"a": None, "b": math.inf},
    (1, math.nan),
    {1.5, math.nan},
    _deep(65),
    _deep(70),
    {"a": {"b": _deep(63)}},
    _deep(5_000),
    HUGE,
    {"a": HUGE},
    "\ud800",
    {"\ud800": 1},
    {(1, 2): 3},
    {None: 1},
    {object(): 1},
    object(),
    print,
    1j,
    MappingProxyType({"a": 1}),
    b"x" * (16 * 1024 * 1024),
]


class TestNewJob:
    """``client.insert`` and ``client.enqueue``, field by field."""

    FIELDS: ClassVar[dict[str, list[Any]]] = {
        "task": [*BAD_NAMES, ""],
        "queue": [*BAD_NAMES, ""],
        "key": [name for name in BAD_NAMES if name is not None],
        "tenant": BAD_NAMES,
        "group": [*(name for name in BAD_NAMES if name is not None), ""],
        "overflow": [*(name for name in BAD_NAMES if name is not None), ""],
        "when_full": ["", "BLOCK", None, 5, "reroute", ["raise"]],
        "priority": BAD_PRIORITIES,
        "run_at": BAD_DATES,
        "delay": BAD_LENGTHS,
        "max_attempts": BAD_ATTEMPTS,
        "timeout": BAD_LENGTHS,
        "expires": BAD_LENGTHS,
        "result_ttl": BAD_LENGTHS,
        "headers": BAD_HEADERS,
        "on_failed": ["", "RUN", None, 5, "raise", ["run"]],
        "id": ["01900000-0000-7000-8000-000000000000", 5, b"x" * 15],
        "args": [[1], "args", 5, b"args"],
        "sections": [{"blob": b""}, None, b"", 5],
    }

    @pytest.mark.parametrize("field", FIELDS)
    async def test_refused(self, store: Store, field: str) -> None:
        client = store.client()

        def job(value: Any) -> NewJob:
            return NewJob(**{"task": "t", "args": {}, field: value})

        await refused(self.FIELDS[field], lambda value: client.enqueue(job(value)), field)
        await refused(self.FIELDS[field], lambda value: client.insert([NewJob(task="fine"), job(value)]), field)
        assert await store.count() == 0

    @pytest.mark.parametrize("field", ["task", "queue", "key", "tenant", "priority", "delay", "max_attempts", "id"])
    async def test_numbers_that_cannot_be_printed(self, memory: Store, field: str) -> None:
        """A number of five thousand digits is refused like any other: saying so must not fail."""
        client = memory.client()

        def attempt(value: Any) -> Any:
            return client.insert([NewJob(**{"task": "t", field: value})])

        await refused([HUGE, -HUGE], attempt, field)
        assert await memory.count() == 0

    async def test_dates_at_the_end_of_time(self, memory: Store) -> None:
        """A date that overflows on its way to UTC, or whose zone does not say where it is."""
        client = memory.client()
        dates = [
            datetime.min.replace(tzinfo=timezone(timedelta(hours=12))),
            datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
            datetime(2030, 1, 1, tzinfo=Unset()),
        ]
        await refused(dates, lambda at: client.insert([NewJob(task="t", run_at=at)]), "run_at")
        assert await memory.count() == 0

    @pytest.mark.parametrize("name", ["parameters", "vm_state", "metadata", "blob"])
    async def test_sections_are_bytes(self, memory: Store, name: str) -> None:
        client = memory.client()

        def attempt(body: Any) -> Any:
            return client.insert([NewJob(task="t", sections=Sections(**{name: body}))])

        await refused(["text", 5, bytearray(b"x"), memoryview(b"x"), [1]], attempt, f"{name}: expected bytes, got ")
        assert await memory.count() == 0

    async def test_contradictions(self, memory: Store) -> None:
        client, at = memory.client(), datetime(2030, 1, 1, tzinfo=UTC)
        jobs = [
            NewJob(task="t", run_at=at, delay="1s"),
            NewJob(task="t", args={"a": 1}, sections=Sections(parameters=b"x")),
        ]
        await refused(jobs, lambda job: client.insert([job]), "got both")
        assert await memory.count() == 0

    async def test_only_jobs(self, memory: Store) -> None:
        client = memory.client()
        lists = [["a job"], [None], [5], [{"task": "t"}], [NewJob(task="t"), "x"], "abc"]
        await refused(lists, client.insert, "expected a NewJob")
        assert await memory.count() == 0

    async def test_arguments(self, memory: Store) -> None:
        client = memory.client()
        await refused(BAD_VALUES, lambda value: client.insert([NewJob(task="t", args={"value": value})]))
        assert await memory.count() == 0

    async def test_ten_years_are_the_limit(self, memory: Store) -> None:
        """X13: of a delay, and of a date just as well."""
        clock = ManualClock()
        client = memory.client(clock=clock)
        now = datetime.fromtimestamp(clock.now() / 1e6, UTC)
        await client.insert([NewJob(task="t", delay="3660d"), NewJob(task="t", run_at=now + timedelta(days=3_650))])
        jobs = [
            NewJob(task="t", delay=timedelta(days=3_660, microseconds=1)),
            NewJob(task="t", run_at=now + timedelta(days=3_700)),
            NewJob(task="t", run_at=datetime.max.replace(tzinfo=UTC)),
        ]
        await refused(jobs, lambda job: client.insert([job]), "years")
        assert await memory.count() == 2

    async def test_a_date_comes_back_as_it_was(self, memory: Store) -> None:
        """To the microsecond, from any zone."""
        app = memory.app()

        @app.task
        async def later() -> None: ...

        for given in (
            datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
            datetime(2034, 6, 1, 12, 30, 59, 999_999, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
            datetime(1970, 1, 1, tzinfo=UTC),
            datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        ):
            handle = await later.options(run_at=given).enqueue()
            assert (await handle.info()).run_at == given


class TestQueueCalls:
    OPTIONS: ClassVar[dict[str, list[Any]]] = {
        "max_attempts": BAD_ATTEMPTS,
        "result_ttl": BAD_LENGTHS,
        "delay": BAD_LENGTHS,
        "priority": BAD_PRIORITIES,
        "tenant": BAD_NAMES,
        "on_failed": ["", "raise", None, 5],
    }

    @pytest.mark.parametrize("entry", ["enqueue", "enqueue_and_wait"])
    @pytest.mark.parametrize("option", OPTIONS)
    async def test_options(self, store: Store, entry: str, option: str) -> None:
        call = getattr(store.queue(), entry)
        await refused(self.OPTIONS[option], lambda value: call("a", 1, **{option: value}), option)
        assert await store.count() == 0

    async def test_a_bad_timeout_stores_nothing(self, memory: Store) -> None:
        """It is looked at before the job is stored, not after."""
        queue = memory.queue()
        await refused(BAD_LENGTHS, lambda value: queue.enqueue_and_wait("a", 1, timeout=value), "timeout")
        assert await memory.count() == 0

    @pytest.mark.parametrize(
        "entry", ["enqueue", "enqueue_and_wait", "status", "result", "cancel", "update_result_ttl"]
    )
    async def test_ids(self, memory: Store, entry: str) -> None:
        more = {"update_result_ttl": ("1h",), "enqueue": (1,), "enqueue_and_wait": (1,)}.get(entry, ())
        call = getattr(memory.queue(), entry)
        await refused(BAD_NAMES, lambda value: call(value, *more), "id: ")
        assert await memory.count() == 0

    @pytest.mark.parametrize("entry", ["enqueue", "enqueue_and_wait"])
    async def test_payloads(self, memory: Store, entry: str) -> None:
        call = getattr(memory.queue(), entry)
        await refused(BAD_VALUES, lambda value: call("a", value))
        assert await memory.count() == 0

    async def test_numbers_that_are_none_inside_of_structs(self, memory: Store) -> None:
        """X05: NaN and infinity are found in dataclasses, structs and keys too, not turned into null."""
        queue = memory.queue()
        values = [Measured(math.nan), Reading(math.inf), {"a": [Reading(-math.inf)]}, {math.nan: 1}]
        await refused(values, lambda value: queue.enqueue("a", value))
        assert await memory.count() == 0

    async def test_keys_that_json_would_turn_into_text(self, memory: Store) -> None:
        """Where nothing says what they were, they are refused; where a type does, they come back as they went."""
        free, loose = memory.queue(), Queue[dict[str, Any], Any]("loose", memory.client())
        values = [{1: "a"}, {"deep": [{2.5: 1}]}, {UUID(int=1): "a"}]
        await refused(values, lambda value: free.enqueue("a", value))
        await refused(values[1:2], lambda value: loose.enqueue("a", value))
        assert await memory.count() == 0
        typed = Queue[dict[int, str], dict[int, str]]("typed", memory.client())

        @typed.execute
        async def echo(job: Job[dict[int, str]]) -> dict[int, str]:
            return job.payload

        async with serving(typed):
            assert await within(typed.enqueue_and_wait("a", {1: "a"})) == {1: "a"}

    def test_two_words_on_retries(self, memory: Store) -> None:
        with pytest.raises(ConfigError, match="max_attempts or retry, got both"):
            memory.queue(max_attempts=10, retry=never())

    async def test_result_ttl(self, memory: Store) -> None:
        queue = memory.queue()
        await queue.enqueue("a", 1)
        await refused(BAD_LENGTHS, lambda value: queue.update_result_ttl("a", value), "result_ttl")

    DEFINITION: ClassVar[dict[str, list[Any]]] = {
        "name": [*BAD_NAMES, ""],
        "concurrency": [0, -1, True, 2.5, "5", None, math.nan],
        "max_attempts": [0, -1, True, False, 1.5, "3", math.nan],
        "lease": [*BAD_LENGTHS, 0, "1ms"],
        "result_ttl": BAD_LENGTHS,
        "timeout": BAD_LENGTHS,
        "grace": BAD_LENGTHS,
        "worker": [*BAD_NAMES, ""],
        "retry": [3, "often", [1]],
        "client": [5, b"memory://", ["memory://"], object()],
        "payload_serde": [5, "json", object()],
        "result_serde": [5, "json", object()],
    }

    @pytest.mark.parametrize("option", DEFINITION)
    async def test_definition(self, option: str) -> None:
        """Told when the queue is made, not when it is used."""
        given = {"name": "jobs", "client": "memory://"}
        await refused(self.DEFINITION[option], lambda value: Queue[Any, Any](**{**given, option: value}))

    async def test_hooks_and_listeners_are_called(self, memory: Store) -> None:
        queue = memory.queue()
        await refused([5, None, "hook"], queue.after, "hook")
        await refused([5, None, "listener"], lambda value: queue.on("completed", value), "listener")


class TestTaskCalls:
    OPTIONS: ClassVar[dict[str, list[Any]]] = {
        name: values for name, values in TestNewJob.FIELDS.items() if name not in ("task", "id", "args", "sections")
    }

    @pytest.mark.parametrize("option", OPTIONS)
    async def test_options(self, memory: Store, option: str) -> None:
        app = memory.app()

        @app.task
        async def note(n: int) -> None: ...

        await refused(self.OPTIONS[option], lambda value: note.options(**{option: value}).enqueue(1), option)
        assert await memory.count() == 0

    async def test_a_bad_wait_stores_nothing(self, memory: Store) -> None:
        """It is looked at before the job is stored, not after."""
        app = memory.app()

        @app.task
        async def note(n: int) -> None: ...

        await refused(BAD_LENGTHS, lambda value: note.options(wait=value).call(1))
        assert await memory.count() == 0

    async def test_arguments(self, memory: Store) -> None:
        app = memory.app()

        @app.task
        async def take(value: Any) -> None: ...

        await refused(BAD_VALUES, take.enqueue, "take")
        await refused([Measured(math.nan), Reading(math.inf), [Reading(math.nan)]], take.enqueue, "take")
        assert await memory.count() == 0

    async def test_batch_payloads(self, memory: Store) -> None:
        app = memory.app()

        @app.batch()
        async def take(jobs: list[Job[Any]]) -> None: ...

        await refused(BAD_VALUES, take.enqueue, "take")
        assert await memory.count() == 0

    async def test_unknown_tasks(self, memory: Store) -> None:
        app = memory.app()
        await refused([None, 5, [], {}, "", "unknown"], lambda value: app.enqueue_named(value, {}), "task")

    async def test_named_arguments(self, memory: Store) -> None:
        app = memory.app()

        @app.task(name="take")
        async def take(n: int = 0) -> None: ...

        await refused([None, 5, "ab", [1], {1: 2}, {"x": 1}], lambda value: app.enqueue_named("take", value), "take")
        assert await memory.count() == 0


class TestLooking:
    @pytest.mark.parametrize("entry", ["get", "fetch", "cancel", "wait"])
    async def test_ids(self, memory: Store, entry: str) -> None:
        ids = ["", "not an id", "0190", "z" * 32, "1" * 33, "\ud800", b"", b"x" * 15, b"x" * 17, 5, None, []]
        await refused(ids, getattr(memory.client(), entry), "job id")
        await refused(["x" * 100_000, b"x" * 100_000, HUGE], getattr(memory.client(), entry), "job id")

    async def test_waits(self, memory: Store) -> None:
        app = memory.app()

        @app.task
        async def note() -> None: ...

        handle = await note.enqueue()
        await refused(BAD_LENGTHS, handle.result)

    async def test_queues(self, memory: Store) -> None:
        client = memory.client()
        await refused([*BAD_NAMES, ""], client.pause, "queue")
        await refused([*BAD_NAMES, ""], client.resume, "queue")

    async def test_a_pause_is_of_a_tenant_or_of_a_task(self, memory: Store) -> None:
        with pytest.raises(InvalidJob, match="expected a tenant or a task, got both: 'a' and 't'"):
            await memory.client().pause("q", tenant="a", task="t")

    @pytest.mark.parametrize("entry", ["get", "fetch", "cancel"])
    async def test_keys(self, store: Store, entry: str) -> None:
        call = getattr(store.client(), entry)
        await refused([*BAD_NAMES, ""], lambda value: call(JobKey(value, "k")), "queue: ")
        await refused(BAD_NAMES, lambda value: call(JobKey("q", value)), "key: ")

    SELECTORS: ClassVar[dict[str, list[Any]]] = {
        "ids": [[b"abc"], [b"x" * 12, b"y" * 40], [5], [None], ["x"], b"x" * 16, "x" * 32, 5],
        "keys": [["k"], [("q", "k")], [JobKey("q", 5)], [JobKey("", "k")], [JobKey("q\0", "k")], JobKey("q", "k")],  # type: ignore[arg-type]
        "queue": [name for name in [*BAD_NAMES, ""] if name is not None],
        "task": [name for name in [*BAD_NAMES, ""] if name is not None],
        "tenant": [name for name in BAD_NAMES if name is not None],
        "states": ["failed", ["junk"], [None], [[]], 5, JobState.FAILED],
        "older_than": [-1, 2**70, math.nan, math.inf, 1.5, "1h", True, timedelta(hours=1)],
        "above": [b"x", 5, "x"],
        "limit": [0, -1, 1.5, "a", None, True, 2**31, 2**70, math.nan],
    }

    @pytest.mark.parametrize("field", SELECTORS)
    async def test_selectors(self, store: Store, field: str) -> None:
        client = store.client()
        about = {"ids": "", "keys": "", "above": "job id"}.get(field, f"{field}: ")
        await client.insert([NewJob(task="t", queue="q")])
        for call in (
            client.list_jobs,
            lambda sel: client.alter(sel, Cancel()),
            lambda sel: client.alter_all(sel, Pause()),
        ):
            await refused(self.SELECTORS[field], lambda value, call=call: call(Selector(**{field: value})), about)
        [job] = await client.list_jobs(Selector(queue="q"))
        assert job.state is JobState.AVAILABLE

    async def test_what_is_no_selector(self, memory: Store) -> None:
        client = memory.client()
        given = [None, 5, "q", {"queue": "q"}, JobKey("q", "k"), Selector]
        await refused(given, client.list_jobs, "expected a Selector")
        await refused(given, lambda value: client.alter(value, Cancel()), "expected a Selector")

    async def test_how_many(self, store: Store) -> None:
        """Any number that can be counted to, and in any number of pages."""
        client = store.client()
        await refused([0, -1, 1.5, "a", None, True, 2**31, 2**70], lambda value: client.list_jobs(Selector(), value))
        await client.insert(NewJob(task="t", queue="q") for _ in range(1_001))
        assert len(await client.list_jobs(Selector(), 2**31 - 1)) == 1_001
        assert len(await client.alter(Selector(limit=2**31 - 1), Pause())) == 1_001

    CHANGES: ClassVar[list[Any]] = [
        *(Move(name) for name in [*BAD_NAMES, "", "x" * 5_000]),
        *(Reprioritise(priority) for priority in [*BAD_PRIORITIES, 10**6, 1.5]),
        *(Reschedule(length) for length in [-5, 2**63, 1.5, "1h", None, True, math.nan]),
        *(Reschedule(0, instant) for instant in [-5, 2**63, 1.5, "1h", True, math.nan]),
        *(Cancel(reason) for reason in [*BAD_NAMES, "x" * 3_000_000]),
        *(Hold(length) for length in [-5, 2**63, 1.5, "1h", None, True, math.nan]),
        *(Watch(inbox) for inbox in [*BAD_NAMES, ""]),
        None, "cancel", Cancel, 5,
    ]  # fmt: skip

    async def test_changes(self, store: Store) -> None:
        """Nothing is changed: no job is moved to where no worker looks."""
        client = store.client()
        [made] = await client.insert([NewJob(task="t", queue="q")])
        for sel in (Selector(ids=[made.id]), Selector(queue="q")):
            await refused(self.CHANGES, lambda change, sel=sel: client.alter(sel, change))
            await refused(self.CHANGES, lambda change, sel=sel: client.alter_all(sel, change))
        job = await client.get(made.id)
        assert (job.state, job.queue, job.priority) == (JobState.AVAILABLE, "q", 0)

    async def test_selectors_in_other_words(self, store: Store) -> None:
        """Ids in any spelling, and states by their names."""
        client = store.client()
        [made] = await client.insert([NewJob(task="t", queue="q", tenant="")])
        job_id = UUID(bytes=made.id)
        ids: Any = [str(job_id), job_id]
        states: Any = ["available", JobState.PAUSED]
        [job] = await client.list_jobs(Selector(ids=ids, states=states, tenant="", above=bytes(16)))
        assert job.id == job_id
        [altered] = await client.alter(Selector(ids=ids, states=states), Cancel(""))
        assert altered.after is JobState.CANCELLED

    async def test_unknown_ids_are_not_found(self, store: Store) -> None:
        client = store.client()
        assert await client.fetch(UUID(int=1)) is None
        assert await client.fetch(JobKey("q", "k")) is None
        with pytest.raises(JobNotFound):
            await client.cancel(UUID(int=1))


class TestManyJobs:
    @pytest.mark.parametrize("one", [NewJob(task="t"), None, 5], ids=["a job", "None", "a number"])
    async def test_are_given_as_several(self, memory: Store, one: Any) -> None:
        app = memory.app()
        with pytest.raises(InvalidJob, match=r"expected jobs, like \[task\.job\(…\)\], got "):
            await app.enqueue_many(one)
        with pytest.raises(InvalidJob, match="expected jobs"):
            await app.client.insert(one)
        with pytest.raises(InvalidJob, match="expected jobs"):
            await asyncio.to_thread(SyncApp(app).enqueue_many, one)

    def test_are_made_in_the_thread_that_enqueues_them(self, memory: Any) -> None:
        """A generator may read a database that the thread of the loop must not touch."""
        app, made_in = memory.app(), []

        def jobs() -> Iterator[NewJob]:
            made_in.append(threading.current_thread())
            yield NewJob(task="t")

        with SyncApp(app) as plainly:
            assert len(plainly.enqueue_many(jobs())) == 1
        assert made_in == [threading.current_thread()]


GOOD_NAMES = [
    ":",
    "/",
    "..",
    "../../etc/passwd",
    "a:b:c",
    "job:exp",
    "{curly}",
    "*?[glob]",
    "'; DROP TABLE jobs; --",
    '"quoted"',
    "%s %n $1",
    "a b\tc\nd\re",
    "\x1b[31mred",
    "\u202eabc",
    "ünïcödé 🌍",
    "x" * 1_024,
    "é" * 512,
    " leading and trailing ",
    "None",
    "0",
    "\x7f\x80",
]


class TestNamesAreData:
    """5.3-6, X04, P16: ids, queues, tenants and tasks of any kind work like any others, and apart from each other. Only
    queues have no control characters in their names."""

    @pytest.mark.parametrize("name", GOOD_NAMES, ids=range(len(GOOD_NAMES)))
    async def test_everywhere(self, store: Store, name: str) -> None:
        place = "".join("_" if category(one) == "Cc" else one for one in name)
        queue = Queue[Any, Any](place, store.client(), worker=name)
        seen: list[tuple[str | None, str, str, str]] = []

        @queue.execute
        async def look(job: Job[Any]) -> Any:
            seen.append((job.key, job.queue, job.tenant, job.task))
            return job.payload

        async with serving(queue):
            assert await within(queue.enqueue_and_wait(name, name, tenant=name)) == name
        assert seen == [(name, place, name, place)]
        assert await queue.result(name) == name
        assert (await queue.client.get(JobKey(place, name))).tenant == name
        [job] = await queue.client.list_jobs(Selector(queue=place, tenant=name, task=place))
        assert job.key == name

    async def test_all_at_once(self, store: Store) -> None:
        """None is taken for another."""
        queue = store.queue()
        for name in [*GOOD_NAMES, ""]:
            assert await queue.enqueue(name, name) == Queued()
        assert await store.count() == len(GOOD_NAMES) + 1
        for name in [*GOOD_NAMES, ""]:
            assert await queue.cancel(name) == "cancelled"

    @pytest.mark.parametrize("pair", [("a", "A"), ("é", "e\u0301"), ("a", "a "), ("ß", "ss"), ("1", "01"), ("", " ")])
    async def test_names_that_look_alike_differ(self, store: Store, pair: tuple[str, str]) -> None:
        queue = store.queue()
        for name in pair:
            assert await queue.enqueue(name, name) == Queued()
            assert (await store.queue(name or "empty").enqueue("a", 1)) == Queued()


class TestValues:
    @pytest.mark.parametrize(
        "value",
        [
            None,
            True,
            0,
            -0.0,
            2**63,
            2**64 - 1,
            -(2**63),
            2**200,
            5e-324,
            1.7976931348623157e308,
            "",
            "\x00",
            "\u2028\u2029\ufeff",
            "\U0010ffff",
            [],
            {},
            {"": ""},
            {"__class__": "os.system", "__reduce__": ["rm"]},
            _deep(62),
            ["["] * 100,
            '[[[[{"' * 50,
            "null",
            [None] * 100,
            "NaN",
        ],
    )
    async def test_what_json_can_say_comes_back_as_it_was(self, store: Store, value: Any) -> None:
        """X05: the same on every store."""
        queue = store.queue()

        @queue.execute
        async def echo(job: Job[Any]) -> Any:
            return job.payload

        async with serving(queue):
            answer = await within(queue.enqueue_and_wait("a", value))
        assert answer == value
        assert type(answer) is type(value)

    async def test_content_ids(self) -> None:
        await refused([object(), "\ud800", HUGE, {(1, 2): 3}], content_id)

    async def test_content_ids_tell_apart_what_json_cannot(self) -> None:
        """Two payloads that differ never share an id: what has no JSON has no id."""
        await refused([math.nan, {"a": math.inf}, Reading(math.nan)], content_id)
        assert content_id({"a": None}) != content_id({"a": "null"})

    async def test_content_ids_of_what_is_too_deep(self) -> None:
        await refused([_deep(100_000)], content_id)


class TestSettings:
    PARTS: ClassVar[dict[str, list[Any]]] = {
        "concurrency": [0, -1, True, 2.5, "many", None],
        "prefetch": [-1, True, 2.5, "many"],
        "max_lost": [-1, True, "many"],
        "lease": [*(bad for bad in BAD_LENGTHS if bad not in ("10", Decimal(10))), 0, "1ms"],
        "poll": [0, "1ms", -1],
        "poll_blind": [0, "1ms", -1],
        "reap": [0, "1ms", -1],
        "grace": [-1, "soon"],
        "executor": ["fibre", "", None, 5],
        "name": ["", "a\0b", "x" * 1_025, 5],
    }

    @pytest.mark.parametrize("name", PARTS)
    async def test_worker(self, name: str) -> None:
        """As keyword arguments, and in TOML."""
        values = self.PARTS[name]
        await refused(values, lambda value: Settings.load({"worker": {name: value}}, env={}, toml={}), name)
        await refused(values, lambda value: Settings.load(env={}, toml={"worker": {name: value}}), name)
        await refused(values, lambda value: App("memory://", worker={name: value}), name)

    async def test_a_setting_made_by_hand(self) -> None:
        """``Settings(worker=WorkerSettings(…))`` is checked like any other."""
        bad: list[Any] = [0, "5", 2.5, True, None]
        await refused(bad, lambda value: Settings(worker=WorkerSettings(concurrency=value)), "concurrency")

    async def test_the_rest(self) -> None:
        given = [
            {"bogus": 1},
            {"worker": {"bogus": 1}},
            {"worker": {"Concurrency": 1}},
            {"worker": 5},
            {"worker": "fast"},
            {"worker": None},
            {"worker": [1]},
            {"payloads": {"max_size": 0}},
            {"payloads": {"max_size": "big"}},
            {"payloads": {"compress_over": "never"}},
            {"payloads": {"compress_over": -1}},
            {"retention": {"completed": {"count": -1}}},
            {"retention": {"completed": {"bytes": -1}}},
            {"retention": {"failed": {"age": "long"}}},
            {"retention": {"every": 0}},
            {"retention": {"every": -1}},
            {"url": 5},
            {"url": b"memory://"},
            {"result_ttl": "for ever"},
            {"patience": math.nan},
        ]
        await refused(given, lambda value: Settings.load(value, env={}, toml={}))
        await refused(given, lambda value: Settings.load(env={}, toml=value))
        await refused(given, lambda value: connect(**value))

    async def test_environment(self) -> None:
        given = [
            {"HEADRACE_WORKER": "fast"},
            {"HEADRACE_WORKER__": "1"},
            {"HEADRACE_WORKER__BOGUS": "1"},
            {"HEADRACE_WORKER__CONCURRENCY": "many"},
            {"HEADRACE_WORKER__CONCURRENCY": ""},
            {"HEADRACE_WORKER__CONCURRENCY": "0"},
            {"HEADRACE_WORKER__CONCURRENCY__MORE": "1"},
            {"HEADRACE_WORKER__LEASE": "soon"},
            {"HEADRACE_WORKER": "fast", "HEADRACE_WORKER__CONCURRENCY": "4"},
            {"HEADRACE_WORKER__CONCURRENCY": "4", "HEADRACE_WORKER": "fast"},
            {"HEADRACE_WORKER__CONCURRENCY": "4", "HEADRACE_WORKER__CONCURRENCY__X": "1"},
        ]
        await refused(given, lambda value: Settings.load(env=value, toml={}))

    async def test_files(self, tmp_path: Path, monkeypatch: Any) -> None:
        monkeypatch.chdir(tmp_path)
        given = [
            ("headrace.toml", "bogus = 1"),
            ("headrace.toml", "[worker]\nbogus = 1"),
            ("headrace.toml", "[worker]\nconcurrency = true"),
            ("headrace.toml", "worker = 5"),
            ("headrace.toml", "not toml at all"),
            ("headrace.toml", "url = 2030-01-01"),
            ("headrace.toml", "[worker]\nlease = nan"),
            ("headrace.toml", "\0"),
            ("pyproject.toml", "[tool.headrace]\nbogus = 1"),
            ("pyproject.toml", "[tool]\nheadrace = 5"),
            ("pyproject.toml", "tool = 5"),
            ("pyproject.toml", "[tool.headrace.worker]\nbogus = 1"),
        ]

        def load(value: tuple[str, str]) -> Settings:
            path = tmp_path / value[0]
            path.write_text(value[1])
            try:
                return Settings.load(env={})
            finally:
                path.unlink()

        await refused(given, load)

    async def test_layers_that_do_not_fit_together(self) -> None:
        """A part in one layer and a plain value under its name in another."""
        layers = [
            ({}, {"HEADRACE_WORKER__LEASE": "30s"}, {"worker": 3}),
            ({"worker": 3}, {}, {"worker": {"lease": 1}}),
            ({"worker": {"lease": 1}}, {"HEADRACE_WORKER": "3"}, {}),
        ]
        await refused(layers, lambda value: Settings.load(value[0], env=value[1], toml=value[2]), "worker")

    async def test_settings_and_more_settings(self, memory: Store) -> None:
        """Overrides beside a ``Settings``, or a client, would be lost without a word."""
        more: list[dict[str, Any]] = [{"bogus": 1}, {"worker": {"concurrency": 5}}]
        await refused(more, lambda value: App(settings(), **value))
        await refused(more, lambda value: App(memory.client(), **value))
        await refused(more, lambda value: connect(settings(), **value))


class TestUrls:
    async def test_malformed(self, tmp_path: Path, monkeypatch: Any) -> None:
        """Refused when they are given, and no file is made."""
        monkeypatch.chdir(tmp_path)
        urls = [
            "",
            "jobs.db",
            "/tmp/jobs.db",
            "://",
            "http://localhost",
            "mysql://h/db",
            "file:///tmp/x",
            "memory://?x=1",
            "sqlite://",
            "sqlite:///",
            "sqlite:///:memory:",
            "sqlite://host/path.db",
            "sqlite:///x.db?bogus=1",
            "sqlite:///x.db?durability=",
            "sqlite:///x.db?durability=none",
        ]
        await refused(urls, connect)
        assert list(tmp_path.iterdir()) == []

    async def test_parts_that_would_be_lost(self, tmp_path: Path, monkeypatch: Any) -> None:
        """What a URL says is used or refused, never dropped: the jobs would be in another place than one thinks."""
        monkeypatch.chdir(tmp_path)
        urls = [
            "memory://host",
            "memory:///path",
            "memory://#fragment",
            "sqlite:///x.db?durability=full&durability=normal",
            "sqlite:///x.db#fragment",
            " sqlite:///x.db",
            "sqlite:///x\nb.db",
        ]
        await refused(urls, connect)

    PASSWORDS: ClassVar[list[str]] = [
        "hun/ter2", "12/hunter2", "100%hunter2", "hun?ter2", "hun?a=ter2", "hun#ter2", "hun@ter2", "hun@t/er2",
        "[hunter2", "hun%00ter2", "hun\u2100ter2",
    ]  # fmt: skip

    @pytest.mark.parametrize("scheme", ["postgresql", "mysql", "sqlite", "memory"])
    @pytest.mark.parametrize("password", PASSWORDS)
    async def test_no_part_of_a_password_is_told(self, scheme: str, password: str) -> None:
        for url in (f"{scheme}://ada:{password}@h/db", f"{scheme}://ada:{password}@h:1/db?bogus=1"):
            try:
                connect(url)
            except ConfigError as error:
                told = str(error)
                assert not any(part in told.partition("%2F")[0] for part in ("hun", "ter2", "ada", "12", "100"))
                if scheme == "postgresql" and "bogus" not in url:
                    assert '"/" is %2F, "%" is %25, "?" is %3F' in told
            else:
                assert password == "[hunter2"

    @pytest.mark.parametrize(
        "url",
        ["postgresql://h/db?password=hunter2&bogus=1", "mysql://h?sslpassword=hunter2", "memory://?passWORD=hunter2"],
    )
    async def test_no_password_among_the_options_is_told(self, url: str) -> None:
        with pytest.raises(ConfigError) as told:
            connect(url)
        assert "hunter2" not in str(told.value)

    async def test_ports(self) -> None:
        urls = ["postgresql://h:port/db", "postgresql://h/db?port=x", "postgresql://a:b@h:1,g:x/db"]
        await refused(urls, connect, "its port is not a number")
        for url in ("postgresql://h,g/db", "postgresql://h:1,g/db", "postgresql://h:1,g:2/db", "postgresql://h:/db"):
            assert connect(url)

    async def test_options_reach_the_server_as_they_are(self) -> None:
        """A blank is no plus, and a plus is no blank: neither for libpq nor here."""
        url = f"{server().url()}?application_name=my%20a+b%2B%26%25&options=-c%20work_mem%3D8MB&schema=a+b%20c"
        async with connect(url) as client:
            backend: Any = await client.backend()
            query = "SELECT current_setting('application_name'), current_setting('work_mem')"
            assert await backend._connections.rows(query) == [("my a+b+&%", "8MB")]
            assert backend.migrator.schema.name == "a+b c"

    async def test_paths_that_cannot_be(self, tmp_path: Path, monkeypatch: Any) -> None:
        monkeypatch.chdir(tmp_path)

        async def use(url: str) -> None:
            async with connect(url):
                pass

        await refused(["sqlite:///a%00b.db", "sqlite:///\ud800.db", "sqlite://[::1", f"sqlite:///{'x' * 300}.db"], use)
        assert list(tmp_path.iterdir()) == []

    async def test_of_the_wrong_type(self) -> None:
        urls = [5, b"memory://", [], object(), Path("x.db")]
        await refused(urls, connect, "url")
        await refused(urls, App, "url")
        await refused(urls, lambda url: Queue[Any, Any]("jobs", url), "url")


class TestRetryPolicies:
    async def test_attempts(self) -> None:
        await refused([0, -1, True, 1.5, "3", None, math.nan], exponential, "max_attempts")
        await refused([0, -1, True, "3"], immediate, "max_attempts")

    async def test_lengths(self) -> None:
        await refused(BAD_LENGTHS, lambda value: exponential(base=value), "base")
        await refused(BAD_LENGTHS, lambda value: exponential(cap=value), "cap")
        await refused(BAD_LENGTHS, lambda value: forever(base=value), "base")

    async def test_factors(self) -> None:
        await refused([0, 0.5, -2, math.nan, math.inf, "2", None], lambda value: exponential(factor=value), "factor")

    async def test_kinds_of_errors(self) -> None:
        kinds = [["x"], (ValueError(),), "ValueError", (5,), 5]
        await refused(kinds, lambda value: exponential(retry_on=value), "retry_on")
        await refused(kinds, lambda value: exponential(give_up_on=value), "give_up_on")

    @pytest.mark.parametrize("kinds", [[ValueError, KeyError], (ValueError, KeyError), ValueError])
    async def test_kinds_of_errors_in_any_form(self, memory: Store, kinds: Any) -> None:
        """A list, a tuple or a single class: refused where it is given, or understood where it is needed."""
        try:
            retry = exponential(5, give_up_on=kinds)
        except ConfigError:
            return
        app = memory.app()

        @app.task(retry=retry)
        async def broken() -> None:
            raise ValueError("no")

        handle = await broken.enqueue()
        await within(app.drain())
        assert (await handle.info()).reason == "not retryable"

    def test_a_factor_of_any_size_has_a_delay(self) -> None:
        """However steep and however late, the cap is the cap."""
        for factor in (1, 2.5, 1e5, 1e300):
            policy = exponential(10**6, base="1s", factor=factor, cap="1h", jitter=False)
            for attempt in (1, 2, 65, 10**6):
                assert 1_000_000 <= policy.delay(attempt, Random(1)) <= 3_600_000_000


async def test_that_a_job_is_not_known_is_told_in_short(memory: Store) -> None:
    client = memory.client()
    with pytest.raises(JobNotFound) as raised:
        await client.get(JobKey("q" * 1_000, "k" * 1_000))
    assert len(str(raised.value)) < 300
