"""Tasks: from a call to a job, and back to a call."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest

from headrace import App, Client, Handle, Job, JobState, NewJob, Task, never
from headrace.core.clock import ManualClock
from headrace.errors import (
    ConfigError,
    HeadraceError,
    InvalidJob,
    JobFailed,
    JobNotFound,
    Unavailable,
    UnknownTask,
    WaitTimeout,
)
from headrace.seam.records import Altered, Cancel, Delete, InsertStatus, JobKey, Requeue, Selector
from tests.facades.harness import Store, Tapped, World, settings, simulate, within, working


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Point(msgspec.Struct):
    x: int
    y: int = 0


@dataclasses.dataclass
class Order:
    id: int
    lines: list[Point]


def outages(store: Store, *, lost: bool) -> Client:
    """A client that gets no answer to every other change: it is not made, or only its answer is lost."""

    class Away(Tapped):
        tries = 0

        async def alter(self, *given: Any) -> list[Altered]:
            self.tries += 1
            if self.tries % 2 == 0:
                return await self.inner.alter(*given)  # type: ignore[no-any-return]
            if lost:
                await self.inner.alter(*given)
            raise Unavailable("away")

    return Client(Away(store.backend()), settings())


class TestEnqueueAndCall:
    async def test_enqueue(self, store: Store) -> None:
        """Fire and forget: the handle names the stored job."""
        app = store.app()

        @app.task
        async def add(a: int, b: int) -> int:
            return a + b

        handle = await add.enqueue(1, b=2)
        assert isinstance(handle, Handle)
        assert (handle.duplicate, handle.state) == (False, JobState.AVAILABLE)
        info = await handle.info()
        assert (info.id, info.task, info.queue, info.args) == (handle.id, add.name, "default", {"a": 1, "b": 2})
        await app.drain()
        assert await handle.result() == 3
        assert (await handle.info()).state is JobState.COMPLETED
        assert (await app.get(handle.id)).result == (await app.get(str(handle.id))).result == 3

    async def test_call(self, store: Store) -> None:
        """Request and response."""
        app = store.app()

        @app.task
        async def add(a: int, b: int) -> int:
            return a + b

        async with working(app):
            assert await within(add.call(1, 2)) == 3
            assert await within(asyncio.gather(*(add.call(n, n) for n in range(20)))) == [2 * n for n in range(20)]

    def test_call_waits_as_long_as_its_option_says(self) -> None:
        """``options(wait=…)``, half a minute unless told."""

        async def main(world: World) -> list[float]:
            app = world.app()

            @app.task
            async def nobody_runs_this() -> None:
                pass

            ends = []
            for task in (nobody_runs_this, nobody_runs_this.options(wait="2m")):
                with pytest.raises(WaitTimeout):
                    await task.call()
                ends.append(world.now())
            return ends

        assert simulate(main) == pytest.approx([30, 150], abs=0.01)

    def test_call_of_a_failed_key_takes_no_time(self) -> None:
        """002-10: with ``on_failed="return"`` the stored failure is raised at once."""

        async def main(world: World) -> float:
            app = world.app()

            @app.task(retry=never())
            async def broken() -> None:
                raise ValueError("no")

            await broken.options(key="k").enqueue()
            await app.drain()
            before = world.now()
            with pytest.raises(JobFailed):
                await broken.options(key="k", on_failed="return").call()
            return world.now() - before

        assert simulate(main) < 0.01

    async def test_calling_the_task_runs_it_here(self, memory: Store) -> None:
        app = memory.app()

        @app.task
        def plain(a: int) -> int:
            return a + 1

        @app.task
        async def asynchronous(a: int) -> int:
            return a + 1

        @app.task
        def watched(job: Job[None], a: int) -> int:
            """Looks at its job."""
            return a + 1

        assert plain(1) == 2
        assert await asynchronous(1) == 2
        with pytest.raises(TypeError, match="takes a job first"):
            watched(1)
        assert (watched.__name__, watched.__doc__) == ("watched", "Looks at its job.")
        assert await memory.count() == 0

    async def test_enqueue_many(self, store: Store) -> None:
        """000-16: any number, of any tasks, in order, with ids known at once."""
        app = store.app()

        @app.task
        async def double(n: int) -> int:
            return 2 * n

        @app.task(queue="other")
        async def half(n: int) -> float:
            return n / 2

        handles = await app.enqueue_many((double if n % 2 else half).job(n) for n in range(2_500))
        assert len({handle.id for handle in handles}) == await store.count() == 2_500
        infos = await asyncio.gather(*(handles[n].info() for n in (0, 1, 1_249, 2_499)))
        assert [info.args for info in infos] == [{"n": 0}, {"n": 1}, {"n": 1_249}, {"n": 2_499}]
        assert await app.enqueue_many([]) == []

    async def test_enqueue_many_reads_results_as_enqueue_does(self, store: Store) -> None:
        """A handle is a handle: the same job gives the same result, whichever way it was enqueued."""
        app = store.app()

        @app.task
        async def make(x: int) -> Point:
            return Point(x)

        one = await make.enqueue(1)
        [many] = await app.enqueue_many([make.job(1)])
        await app.drain()
        assert await one.result() == await many.result() == Point(1)

    async def test_enqueue_many_may_be_repeated(self, store: Store) -> None:
        """A job has its id from its making on: what was stored the first time is not stored twice."""
        app = store.app()

        @app.task
        async def work(n: int) -> None: ...

        jobs = [work.job(n) for n in range(5)]
        await app.enqueue_many(jobs[:3])
        handles = await app.enqueue_many(jobs)
        assert [handle.id.bytes for handle in handles] == [job.id for job in jobs]
        assert await store.count() == 5

    @pytest.mark.parametrize("lost", [False, True])
    async def test_a_change_waits_out_an_outage(self, memory: Store, lost: bool) -> None:
        """Where twice is the same as once, also when it was the answer that was lost."""
        client = outages(memory, lost=lost)
        [one, two] = await client.insert([NewJob(task="t", queue="q", key=key) for key in ("a", "b")])
        assert await within(client.cancel(one.id)) is JobState.CANCELLED
        assert await within(client.cancel(two.id)) is JobState.CANCELLED
        await within(client.pause("q"))
        assert (await client.stats()).queues[0].paused
        await client.insert(NewJob(task="t", queue="r") for _ in range(5))
        changed = await within(client.alter_all(Selector(queue="r", limit=2), Delete()))
        assert changed == (2 if lost else 5)
        assert await client.list_jobs(Selector(queue="r")) == []

    @pytest.mark.parametrize(
        ("sel", "change"),
        [
            (Selector(queue="q", limit=1), Delete()),
            (Selector(keys=[JobKey("q", "a")]), Cancel()),
            (Selector(ids=[bytes(16)]), Requeue()),
        ],
        ids=["the next ones would be met", "another may have the key", "it may have run"],
    )
    async def test_a_change_is_not_made_twice(self, memory: Store, sel: Selector, change: Any) -> None:
        client = outages(memory, lost=True)
        await client.insert([NewJob(task="t", queue="q", key=key) for key in ("a", "b")])
        with pytest.raises(Unavailable):
            await within(client.alter(sel, change))
        left = await client.list_jobs(Selector(states=frozenset({JobState.AVAILABLE})))
        assert len(left) == (2 if isinstance(change, Requeue) else 1)

    async def test_patience_with_a_change_ends(self, memory: Store) -> None:
        class Away(Tapped):
            async def alter(self, *given: Any) -> None:
                raise Unavailable("away")

        client = Client(Away(memory.backend()), settings(patience="100ms"))
        with pytest.raises(Unavailable, match="away"):
            await within(client.cancel(bytes(16)))
        await client.close()

    async def test_an_enqueue_waits_for_a_store_that_is_away_at_first(self, memory: Store) -> None:
        class Late(Tapped):
            tries = 0

            async def open(self) -> None:
                self.tries += 1
                if self.tries < 3:
                    raise Unavailable("away")

        late = Late(memory.backend())
        client = Client(late, settings())
        assert (await within(client.enqueue(NewJob(task="t", queue="q")))).status is InsertStatus.NEW
        assert late.tries == 3
        await client.close()

    async def test_but_not_for_ever(self, memory: Store) -> None:
        class Away(Tapped):
            async def open(self) -> None:
                raise Unavailable("away")

        with pytest.raises(Unavailable, match="away"):
            await within(
                Client(Away(memory.backend()), settings(patience="100ms")).insert([NewJob(task="t", queue="q")])
            )

    async def test_call_keeps_its_time_while_the_store_is_away(self, memory: Store) -> None:
        """C05, I15: one timeout for storing and waiting."""

        class Away(Tapped):
            async def insert(self, *given: Any) -> None:
                raise Unavailable("away")

        app = App(Client(Away(memory.backend()), settings()))

        @app.task
        async def work() -> None: ...

        with pytest.raises(WaitTimeout, match="whether the job was stored is unknown"):
            await within(work.options(wait="50ms").call())
        await within(app.client.close())

    @pytest.mark.parametrize("result_ttl", [0, "1h"])
    async def test_a_coroutine_in_a_plain_wrapper_is_run(self, store: Store, result_ttl: Any) -> None:
        app, ran = store.app(), []

        def plain(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def wrapper(*args: Any) -> Any:
                return function(*args)

            return wrapper

        @app.task(result_ttl=result_ttl)
        @plain
        async def work(n: int) -> int:
            ran.append(n)
            return 2 * n

        handle = await work.enqueue(21)
        await app.drain()
        assert (await handle.info()).state is JobState.COMPLETED
        assert ran == [21]
        if result_ttl:
            assert await handle.result() == 42

    async def test_a_job_without_arguments(self, store: Store) -> None:
        app, ran = store.app(), []

        @app.task(name="work")
        async def work() -> None:
            ran.append(1)

        await app.enqueue_many([NewJob(task="work")])
        await app.drain()
        assert ran == [1]

    async def test_all_or_nothing_is_checked(self, store: Store) -> None:
        """X13: one bad job among many, and none is stored."""
        app = store.app()

        @app.task
        async def double(n: int) -> int:
            return 2 * n

        jobs: list[Any] = [double.job(n) for n in range(1_500)]
        jobs.append(msgspec.structs.replace(double.job(1), priority=99_999))
        with pytest.raises(InvalidJob):
            await app.enqueue_many(jobs)
        assert await store.count() == 0

    async def test_enqueue_by_name(self, store: Store) -> None:
        app = store.app()

        @app.task(name="mail.welcome")
        async def welcome(user: int, template: str = "hello") -> str:
            return f"{template} {user}"

        handle = await app.enqueue_named("mail.welcome", {"user": 42}, queue="slow", priority=3)
        assert (await handle.info()).queue == "slow"
        await app.drain(["slow"])
        assert await handle.result() == "hello 42"
        with pytest.raises(UnknownTask, match=r"mail\.welcome"):
            await app.enqueue_named("mail.farewell", {})

    async def test_cancelling_what_is_not_there(self, store: Store) -> None:
        """As looking at it: told."""
        app = store.app()

        @app.task
        async def note() -> None: ...

        for unknown in ("01900000-0000-7000-8000-000000000000", JobKey("default", "k")):
            for ask in (app.cancel, app.get, app.why):
                with pytest.raises(JobNotFound, match="no job"):
                    await ask(unknown)  # type: ignore[operator]
        handle = await note.enqueue()
        await app.client.alter(Selector(ids=[handle.id.bytes]), Delete())
        with pytest.raises(JobNotFound, match="no job"):
            await handle.cancel()

    async def test_cancel(self, store: Store) -> None:
        app = store.app()

        @app.task
        async def never_run() -> None:
            raise AssertionError("it was cancelled")

        handle, keyed = await never_run.enqueue(), await never_run.options(key="k").enqueue()
        assert await handle.cancel() is await app.cancel(JobKey("default", "k")) is JobState.CANCELLED
        await app.drain()
        assert (await keyed.info()).state is JobState.CANCELLED


class TestArguments:
    async def _run(self, store: Store, define: Callable[[App, list[Any]], Task[..., Any]], *calls: Any) -> list[Any]:
        app, seen = store.app(), []
        task = define(app, seen)
        for args, kwargs in calls:
            await task.enqueue(*args, **kwargs)
        await app.drain()
        return seen

    async def test_by_position_and_by_name(self, store: Store) -> None:
        def define(app: App, seen: list[Any]) -> Task[..., Any]:
            @app.task
            async def f(a: int, b: int, c: int = 3) -> None:
                seen.append((a, b, c))

            return f

        calls = [((1, 2), {}), ((1,), {"b": 2}), ((), {"b": 2, "a": 1, "c": 4}), ((1, 2, 5), {})]
        assert await self._run(store, define, *calls) == [(1, 2, 3), (1, 2, 3), (1, 2, 4), (1, 2, 5)]

    async def test_positional_only_and_keyword_only(self, store: Store) -> None:
        def define(app: App, seen: list[Any]) -> Task[..., Any]:
            @app.task
            async def f(a: int, b: int = 2, /, c: int = 3, *, d: int, e: int = 5) -> None:
                seen.append((a, b, c, d, e))

            return f

        calls = [((1,), {"d": 4}), ((1, 9), {"d": 4, "e": 6}), ((1, 9, 8), {"d": 4}), ((1,), {"c": 7, "d": 4})]
        assert await self._run(store, define, *calls) == [
            (1, 2, 3, 4, 5),
            (1, 9, 3, 4, 6),
            (1, 9, 8, 4, 5),
            (1, 2, 7, 4, 5),
        ]

    async def test_no_arguments(self, store: Store) -> None:
        def define(app: App, seen: list[Any]) -> Task[..., Any]:
            @app.task
            async def f() -> None:
                seen.append("ran")

            return f

        assert await self._run(store, define, ((), {})) == ["ran"]

    async def test_a_default_is_the_one_in_force_where_the_job_runs(self, memory: Store) -> None:
        """What was left out is not stored."""
        old, new = memory.app(), memory.app()

        @old.task(name="greet")
        async def before(name: str, greeting: str = "hello") -> None: ...

        seen: list[str] = []

        @new.task(name="greet")
        async def after(name: str, greeting: str = "good day") -> None:
            seen.append(f"{greeting} {name}")

        await before.enqueue("Ada")
        await new.drain()
        assert seen == ["good day Ada"]

    async def test_the_job_itself(self, store: Store) -> None:
        """A first parameter annotated ``Job`` gets the job; callers do not pass it."""

        def define(app: App, seen: list[Any]) -> Task[..., Any]:
            @app.task
            async def f(job: Job[Any], a: int, *, b: int = 2) -> None:
                seen.append((job.task, job.attempt, a, b))

            return f

        [(name, attempt, a, b)] = await self._run(store, define, ((1,), {"b": 3}))
        assert (attempt, a, b) == (0, 1, 3)
        assert name.endswith("f")

    @pytest.mark.parametrize("annotation", [Job, Job[Any], Job[int]])
    async def test_the_job_itself_alone(self, memory: Store, annotation: Any) -> None:
        app, seen = memory.app(), []

        async def f(job: Any) -> None:
            seen.append(job.queue)

        f.__annotations__["job"] = annotation
        task: Any = app.task(f)
        await task.enqueue()
        await app.drain()
        assert seen == ["default"]

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            (Any, {"a": [1, None, "ü", 1.5, True]}),
            (int, 2**64 - 1),
            (int, -(2**63)),
            (float, 0.1),
            (str, "\x00\x1b[31m\u2028 \U0001f600"),
            (bytes, bytes(range(256))),
            (Colour, Colour.GREEN),
            (Literal["a", "b"], "b"),
            (Point, Point(1, 2)),
            (Order, Order(1, [Point(1), Point(2)])),
            (list[Order], [Order(1, [])]),
            (dict[str, Point | None], {"a": Point(1), "b": None}),
            (dict[int, str], {1: "one"}),
            (tuple[int, str], (1, "a")),
            (set[int], {1, 2, 3}),
            (datetime, datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
            (date, date(2030, 1, 2)),
            (timedelta, timedelta(seconds=90, microseconds=1)),
            (UUID, UUID(int=5)),
            (Decimal, Decimal("1.10")),
            (int | None, None),
        ],
    )
    async def test_types(self, memory: Store, kind: Any, value: Any) -> None:
        """By annotation, both ways; with and without a default."""
        app, seen = memory.app(), []

        async def f(x: Any, y: Any = "default") -> Any:
            seen.extend((x, y))
            return x

        f.__annotations__.update({"x": kind, "y": kind, "return": kind})
        task: Any = app.task(f)
        first, second = await task.enqueue(value), await task.enqueue(value, value)
        await app.drain()
        assert seen == [value, "default", value, value]
        assert await first.result() == await second.result() == value

    @pytest.mark.parametrize(
        ("args", "kwargs", "says"),
        [
            ((), {}, "'a'"),
            ((1,), {}, "'b'"),
            ((1, 2, 3, 4), {}, "too many"),
            ((1, 2), {"a": 1}, "multiple values"),
            ((1, 2), {"z": 1}, "z"),
            (("one", 2), {}, "int"),
            ((1, None), {}, "int"),
            ((1, 2.5), {}, "int"),
            ((object(), 2), {}, "object"),
            ((1, 2), {"c": "\ud800"}, "surrogates"),
        ],
    )
    async def test_a_call_that_could_not_be_made_is_refused(
        self, memory: Store, args: Any, kwargs: Any, says: str
    ) -> None:
        """Where it is made: with the task's name and signature, and nothing stored."""
        app = memory.app()

        @app.task(name="picky")
        async def f(a: int, b: int, c: str = "") -> None: ...

        task: Any = f
        for attempt in (task.enqueue, task.call):
            with pytest.raises(InvalidJob, match=says) as caught:
                await attempt(*args, **kwargs)
            assert "picky(a: " in str(caught.value)
        with pytest.raises(InvalidJob):
            task.job(*args, **kwargs)
        assert await memory.count() == 0

    async def test_positional_only_by_name_is_refused(self, memory: Store) -> None:
        """Python would refuse that call, and so do we."""
        app = memory.app()

        @app.task
        async def f(a: int, /) -> None: ...

        task: Any = f
        with pytest.raises(InvalidJob, match="positional"):
            await task.enqueue(a=1)

    @pytest.mark.parametrize("value", ["a string", {"x": "not a number"}, {}])
    async def test_structs_are_checked(self, memory: Store, value: Any) -> None:
        app = memory.app()

        @app.task
        async def f(point: Point) -> None: ...

        task: Any = f
        with pytest.raises(InvalidJob, match=r"\$\.point"):
            await task.enqueue(value)

    async def test_a_type_that_cannot_be_rebuilt_is_refused(self, memory: Store) -> None:
        """A typed error, where the job is made or even where the task is: not a surprise in the worker."""
        app = memory.app()

        async def f(x: Any) -> None: ...

        f.__annotations__["x"] = _Opaque

        async def define_and_use() -> None:
            task: Any = app.task(f)
            await task.enqueue({"a": 1})

        with pytest.raises(HeadraceError, match="_Opaque"):
            await define_and_use()
        assert await memory.count() == 0


class _Opaque:
    pass


class TestDefinition:
    def test_names(self, memory: Store) -> None:
        """A task is called after its function, wherever that is, unless it is given a name."""
        app = memory.app()

        @app.task
        async def local() -> None: ...

        @app.task(name="given")
        async def named() -> None: ...

        assert local.name.endswith("TestDefinition.test_names.local")
        assert local.name.startswith(__name__)
        assert named.name == "given"
        assert repr(named) == "Task('given', queue='default')"

    @pytest.mark.parametrize(
        ("how", "name"), [("shop.py", "shop.receipt"), ("-m shop", "shop.receipt"), ("-", "receipt")]
    )
    def test_names_in_a_script_are_those_that_a_worker_knows(self, tmp_path: Path, how: str, name: str) -> None:
        """``python shop.py`` and ``headrace worker shop:app`` speak of the same task."""
        code = "from headrace import App\napp = App('memory://')\n@app.task\ndef receipt(): ...\nprint(receipt.name)\n"
        (tmp_path / "shop.py").write_text(code)
        command = [sys.executable, *how.split()]
        done = subprocess.run(command, cwd=tmp_path, input=code, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [name]

    @pytest.mark.parametrize(
        ("define", "says"),
        [
            (lambda app: app.task(lambda: None), "name"),
            (lambda app: app.task(5), "name"),
            (lambda app: app.task(name="x")(5), "function"),
            (lambda app: app.task(executor="fibre")(print), "executor"),
            (lambda app: app.task(timeout="soon")(_nothing), "timeout"),
            (lambda app: app.task(timeout=-1)(_nothing), "timeout"),
            (lambda app: app.task(result_ttl=float("nan"))(_nothing), "result_ttl"),
            (lambda app: app.task(expires="11y")(_nothing), "expires"),
            (lambda app: app.task(executor="thread")(_nothing), "event loop"),
            (lambda app: app.task(_variable), "args"),
            (lambda app: app.task(_keywords), "kwargs"),
            (lambda app: app.task(_unresolved), "annotation"),
            (lambda app: app.task(executor="process")(_local_function()), "imported"),
            (lambda app: app.task(executor="process")(_watched), "leave out the job parameter"),
            (lambda app: [app.task(_nothing), app.task(_nothing)], "registered already"),
            (lambda app: app.batch()(_nothing), "parameter"),
            (lambda app: app.batch(size=0)(_batch), "size"),
            (lambda app: app.batch()(lambda jobs: None), "name"),
            (lambda app: app.batch()(_plain_batch), "async"),
            (lambda app: app.batch(timeout="soon")(_batch), "timeout"),
            (
                lambda app: app.task(retries=3),
                r"@app.task: unknown option 'retries' \(did you mean 'retry'\?\); there",
            ),
            (
                lambda app: app.task(max_retries=3),
                "unknown option 'max_retries'; there are: queue, priority, ",
            ),
            (
                lambda app: app.task(_nothing, delay=3),
                r"'delay' \(it is an option of single jobs: task.options\(delay=…\)\)",
            ),
            (
                lambda app: app.batch(sizes=3),
                r"@app.batch: unknown option 'sizes' \(did you mean 'size'\?\); there",
            ),
        ],
    )
    def test_mistakes_are_told_at_once(self, memory: Store, define: Callable[[App], Any], says: str) -> None:
        """When the task is defined, not when its first job is run."""
        with pytest.raises(ConfigError, match=says):
            define(memory.app())

    @pytest.mark.parametrize(
        "define",
        [
            lambda app: app.task(retry=3)(_nothing),
            lambda app: app.task(retry="often")(_nothing),
            lambda app: app.task(priority="high")(_nothing),
            lambda app: app.task(priority=40_000)(_nothing),
            lambda app: app.batch(size="many")(_batch),
            lambda app: app.batch(size=True)(_batch),
            lambda app: app.batch(retry=3)(_batch),
            lambda app: app.batch()(_dict_batch),
            lambda app: app.middleware(5),
            lambda app: app.observe(5),
        ],
    )
    def test_so_are_values_of_the_wrong_type(self, memory: Store, define: Callable[[App], Any]) -> None:
        with pytest.raises((ConfigError, InvalidJob), match="expected"):
            define(memory.app())

    @pytest.mark.parametrize("name", ["", "a\0b", "x" * 1_025, "\ud800", 5])
    def test_names_that_no_store_could_take(self, memory: Store, name: Any) -> None:
        with pytest.raises((ConfigError, InvalidJob)):
            memory.app().task(name=name)(_nothing)
        with pytest.raises((ConfigError, InvalidJob)):
            memory.app().task(queue=name)(_nothing)


async def _nothing() -> None: ...
async def _variable(*args: int) -> None: ...
async def _keywords(**kwargs: int) -> None: ...
async def _unresolved(x: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821
async def _batch(jobs: list[Job[int]]) -> None: ...
async def _dict_batch(jobs: dict[str, Job[int]]) -> None: ...
def _plain_batch(jobs: list[Job[int]]) -> None: ...


def _watched(job: Job[None]) -> None: ...


def _local_function() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


class TestOptions:
    async def test_every_option_reaches_the_store(self, store: Store) -> None:
        clock = ManualClock()
        app = store.app(clock=clock)

        @app.task(queue="mail", priority=1, expires="2d")
        async def welcome(user: int) -> None: ...

        at = datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
        handle = await welcome.options(
            queue="slow",
            key="k:42",
            tenant="acme",
            priority=-7,
            run_at=at,
            max_attempts=9,
            timeout="3s",
            expires="1d",
            result_ttl="5m",
            headers={"trace": "ü"},
        ).enqueue(42)
        record = await app.client.fetch(handle.id)
        assert record is not None
        info = await handle.info()
        assert (info.queue, info.key, info.tenant, info.priority) == ("slow", "k:42", "acme", -7)
        assert (info.run_at, info.max_attempts, info.headers) == (at, 9, {"trace": "ü"})
        assert (record.timeout, record.result_ttl) == (3_000_000, 300_000_000)
        assert record.expires_at == clock.now() + 86_400_000_000

    async def test_the_task_itself_stays_as_it_was(self, memory: Store) -> None:
        app = memory.app()

        @app.task(queue="mail")
        async def welcome(user: int) -> None: ...

        other = welcome.options(queue="slow", priority=5)
        assert other.options(tenant="acme").job(1).priority == 5
        assert (welcome.job(1).queue, welcome.job(1).priority) == ("mail", 0)

    async def test_delay(self, store: Store) -> None:
        """002-61: not before its time, and then in its turn."""
        clock = ManualClock()
        app, order = store.app(clock=clock), []

        @app.task
        async def note(name: str) -> None:
            order.append(name)

        await note.options(delay="10m").enqueue("later")
        await note.enqueue("now")
        await app.drain()
        clock.advance("9m")
        await app.drain()
        assert order == ["now"]
        clock.advance("2m")
        await app.drain()
        assert order == ["now", "later"]

    async def test_run_at_in_the_past_runs_now(self, store: Store) -> None:
        app, order = store.app(), []

        @app.task
        async def note(name: str) -> None:
            order.append(name)

        await note.enqueue("second")
        await note.options(run_at=datetime(2001, 1, 1, tzinfo=UTC)).enqueue("first")
        await app.drain()
        assert order == ["first", "second"]

    async def test_priority(self, store: Store) -> None:
        app, order = store.app(worker={"concurrency": 1, "prefetch": 0}), []

        @app.task
        async def note(n: int) -> None:
            order.append(n)

        for n in (3, -1, 2, 0):
            await note.options(priority=n).enqueue(n)
        await app.drain()
        assert order == [-1, 0, 2, 3]

    async def test_expires(self, store: Store) -> None:
        """A job that nobody started in time is cancelled, not run late."""
        clock = ManualClock()
        app = store.app(clock=clock)

        @app.task(expires="1m")
        async def urgent() -> None:
            raise AssertionError("too late for that")

        handle = await urgent.enqueue()
        clock.advance("61s")
        await app.drain()
        info = await handle.info()
        assert (info.state, info.reason) == (JobState.CANCELLED, "expired")

    async def test_key_and_tenant(self, store: Store) -> None:
        app = store.app()

        @app.task
        async def once(n: int) -> int:
            return n

        first = await once.options(key="k", tenant="a").enqueue(1)
        second = await once.options(key="k", tenant="b").enqueue(2)
        assert (first.duplicate, second.duplicate, second.id) == (False, True, first.id)
        assert repr(second) == f"Handle({first.id}, duplicate)"
        await app.drain()
        third = await once.options(key="k").enqueue(3)
        assert (third.state, await third.result()) == (JobState.COMPLETED, 1)
        [job] = await app.client.list_jobs(Selector(tenant="a"))
        assert job.id == first.id

    async def test_headers_travel_with_the_job(self, store: Store) -> None:
        app, seen = store.app(), []

        @app.task
        async def look(job: Job[Any]) -> None:
            seen.append(job.headers)

        await look.options(headers={"traceparent": "00-abc", "": ""}).enqueue()
        await look.enqueue()
        await app.drain()
        assert seen == [{"traceparent": "00-abc", "": ""}, {}]

    @pytest.mark.parametrize("name", ["prio", "Key", "task", "id", "args", "", "retry"])
    def test_unknown_options_are_refused(self, memory: Store, name: str) -> None:
        """With the list of those that there are."""
        app = memory.app()
        task: Any = app.task(_nothing)
        with pytest.raises(ConfigError, match="max_attempts"):
            task.options(**{name: 1})


class TestLooking:
    async def test_info_tells_it_all(self, store: Store) -> None:
        clock = ManualClock()
        app = store.app(clock=clock)

        @app.task(retry=never())
        async def broken(n: int) -> None:
            raise ValueError(f"not {n}")

        handle = await broken.options(key="k", tenant="t", priority=2, headers={"a": "b"}).enqueue(5)
        await app.drain()
        info = await handle.info()
        assert (info.state, info.attempt, info.reason, info.key) == (JobState.FAILED, 1, "retries exhausted", "k")
        [failure] = info.failures
        assert (failure.type, failure.message, failure.attempt) == ("ValueError", "not 5", 1)
        assert "not 5" in failure.traceback
        assert info.enqueued_at == info.finished_at == datetime.fromtimestamp(clock.now() / 1e6, UTC)
        plain = info.to_dict()
        assert msgspec.json.decode(msgspec.json.encode(plain)) == plain
        assert plain["args"] == {"n": 5}

    async def test_list(self, store: Store) -> None:
        app = store.app()

        @app.task
        async def note(n: int) -> None: ...

        handles = await app.enqueue_many(note.job(n) for n in range(250))
        jobs = await app.client.list_jobs(Selector(task=note.name), limit=240)
        assert [job.id for job in jobs] == [handle.id for handle in reversed(handles)][:240]
        assert await app.client.list_jobs(Selector(queue="nowhere")) == []

    async def test_raw_jobs(self, store: Store) -> None:
        """The client takes jobs by task name, for producers that know no task."""
        app, seen = store.app(), []

        @app.task(name="mail.welcome")
        async def welcome(user: int) -> None:
            seen.append(user)

        await app.client.insert([NewJob(task="mail.welcome", args={"user": 42})])
        await app.drain()
        assert seen == [42]
