"""The reliable queue: styles of handlers, order, concurrency, and the types of payloads and results."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

import msgspec
import pytest

from headrace import Again, Done, Fail, Job, JsonSerde, MsgpackSerde, Queue, RawSerde, Retry, immediate, never
from headrace.errors import CodecError, HeadraceError, JobFailed, Stop
from tests.facades.harness import Gate, Store, serving, within


class TestStyles:
    """002-43: async, plain, and with a callback."""

    async def test_async(self, store: Store) -> None:
        queue = store.queue()

        @queue.execute
        async def echo(job: Job[Any]) -> Any:
            await asyncio.sleep(0)
            return job.payload

        async with serving(queue):
            assert await queue.enqueue_and_wait("a", "x") == "x"

    async def test_plain_in_a_thread(self, store: Store) -> None:
        queue = store.queue()
        threads: list[str] = []

        @queue.execute
        def echo(job: Job[Any]) -> Any:
            threads.append(threading.current_thread().name)
            return job.payload

        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", "x")) == "x"
        assert threads != [threading.main_thread().name]

    async def test_callback(self, store: Store) -> None:
        queue = store.queue()

        @queue.execute
        def echo(job: Job[Any], done: Callable[..., None]) -> None:
            done(None, job.payload)

        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", "x")) == "x"

    async def test_callback_from_another_thread_and_later(self, store: Store) -> None:
        queue = store.queue()

        @queue.execute
        def echo(job: Job[Any], done: Callable[..., None]) -> None:
            threading.Thread(target=done, args=(None, job.payload)).start()

        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", "x")) == "x"

    async def test_callback_with_an_error(self, store: Store) -> None:
        queue = store.queue(retry=never())

        @queue.execute
        def broken(job: Job[Any], done: Callable[..., None]) -> None:
            done(ValueError("by callback"))

        async with serving(queue):
            with pytest.raises(JobFailed, match="by callback"):
                await within(queue.enqueue_and_wait("a", 1))

    @pytest.mark.parametrize("error", ["just a text", 5, StopIteration("end")])
    async def test_callback_with_something_else_for_an_error(self, memory: Store, error: Any) -> None:
        """Whatever is given as the error, the attempt has failed; it does not hang."""
        queue = memory.queue(retry=never())

        @queue.execute
        def broken(job: Job[Any], done: Callable[..., None]) -> None:
            done(error)

        async with serving(queue):
            with pytest.raises(JobFailed, match="end" if isinstance(error, Exception) else str(error)):
                await within(queue.enqueue_and_wait("a", 1))

    async def test_only_the_first_callback_counts(self, store: Store) -> None:
        queue = store.queue()

        @queue.execute
        def twice(job: Job[Any], done: Callable[..., None]) -> None:
            done(None, "first")
            done(ValueError("second"))

        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", 1)) == "first"

    async def test_callback_handler_that_raises(self, store: Store) -> None:
        queue = store.queue(retry=never())

        @queue.execute
        def broken(job: Job[Any], done: Callable[..., None]) -> None:
            raise ValueError("before it could call")

        async with serving(queue):
            with pytest.raises(JobFailed, match="before it could call"):
                await within(queue.enqueue_and_wait("a", 1))

    async def test_a_plain_handler_with_an_optional_parameter_has_no_callback(self, memory: Store) -> None:
        """Only a second parameter that must be given is a callback."""
        queue = memory.queue()

        @queue.execute
        def echo(job: Job[Any], prefix: str = ">", **more: Any) -> str:
            return f"{prefix}{job.payload}"

        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", 1)) == ">1"

    async def test_partial(self, memory: Store) -> None:
        queue = memory.queue()

        async def add(n: int, job: Job[int]) -> int:
            return job.payload + n

        queue.execute(functools.partial(add, 10))
        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", 1)) == 11

    async def test_bound_method(self, memory: Store) -> None:
        queue = memory.queue()

        class Service:
            async def handle(self, job: Job[int]) -> int:
                return job.payload + 1

        queue.execute(Service().handle)
        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", 1)) == 2

    @pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
    async def test_object_that_is_called_asynchronously(self, memory: Store) -> None:
        """What a handler returns is awaited if it must be."""
        queue = memory.queue(retry=never())

        class Service:
            async def __call__(self, job: Job[int]) -> int:
                return job.payload + 1

        queue.execute(Service())
        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", 1)) == 2

    async def test_plain_handlers_run_side_by_side(self, memory: Store) -> None:
        """002-35: each in a thread of its own, up to the concurrency."""
        queue = memory.queue(concurrency=3)
        together = threading.Barrier(3, timeout=60)

        @queue.execute
        def meet(job: Job[int]) -> int:
            return together.wait()

        async with serving(queue):
            answers = await within(asyncio.gather(*(queue.enqueue_and_wait(str(n), n) for n in range(3))))
        assert sorted(answers) == [0, 1, 2]

    async def test_a_plain_handler_learns_that_it_should_stop(self, memory: Store) -> None:
        """002-43: the job's token is the abort signal."""
        queue, entered, reasons = memory.queue(), threading.Event(), []
        left = threading.Event()

        @queue.execute
        def patient(job: Job[int]) -> None:
            entered.set()
            job.cancel.wait(60)
            reasons.append(job.cancel.reason)
            left.set()

        async with serving(queue):
            await queue.enqueue("a", 1)
            await asyncio.to_thread(entered.wait, 60)
            assert await queue.cancel("a") == "processing"
            assert await asyncio.to_thread(left.wait, 5)
        assert reasons == ["cancelled"]


class TestOutcomes:
    async def test_every_outcome(self, store: Store) -> None:
        """Handlers may return, or stop with, what should become of the job."""
        queue = store.queue(retry=immediate(2))
        seen: list[tuple[str, int]] = []

        @queue.execute
        async def decide(job: Job[str]) -> Any:
            seen.append((job.payload, job.attempt))
            match job.payload:
                case "done":
                    return Done({"a": 1})
                case "fail":
                    return Fail("never", "policy")
                case "retry":
                    return Retry(0, "once more") if job.attempt == 0 else "after a retry"
                case "again":
                    return Again(0) if len([s for s in seen if s[0] == "again"]) < 3 else "after snoozing"
                case "stop":
                    raise Stop(Done("from deep down"))

        async with serving(queue):
            assert await queue.enqueue_and_wait("done", "done") == {"a": 1}
            assert await queue.enqueue_and_wait("retry", "retry") == "after a retry"
            assert await queue.enqueue_and_wait("again", "again") == "after snoozing"
            assert await queue.enqueue_and_wait("stop", "stop") == "from deep down"
            with pytest.raises(JobFailed) as caught:
                await queue.enqueue_and_wait("fail", "fail")
        assert (caught.value.reason, caught.value.attempts) == ("policy", 1)
        assert [s for s in seen if s[0] == "again"] == [("again", 0)] * 3


class TestOrderAndBound:
    async def test_first_in_first_out(self, store: Store) -> None:
        """002-47."""
        queue = store.queue()
        order: list[int] = []

        @queue.execute
        async def note(job: Job[int]) -> None:
            order.append(job.payload)

        for n in range(50):
            await queue.enqueue(f"job-{n}", n)
        async with serving(queue):
            await within(queue.enqueue_and_wait("last", 50))
        assert order == list(range(51))

    async def test_first_in_first_out_within_one_trip(self, store: Store) -> None:
        """002-47: calls made together keep their order too."""
        queue = store.queue()
        order: list[int] = []

        @queue.execute
        async def note(job: Job[int]) -> None:
            order.append(job.payload)

        await asyncio.gather(*(queue.enqueue(f"job-{n}", n) for n in range(50)))
        async with serving(queue):
            await within(queue.enqueue_and_wait("last", 50))
        assert order == list(range(51))

    async def test_lower_numbers_first(self, store: Store) -> None:
        """002-60."""
        queue = store.queue()
        order: list[int] = []

        @queue.execute
        async def note(job: Job[int]) -> None:
            order.append(job.priority)

        for priority in (5, -5, 0, 32_767, -32_768):
            await queue.enqueue(f"p{priority}", 0, priority=priority)
        async with serving(queue):
            await within(queue.enqueue_and_wait("p32767", 0))
        assert order == [-32_768, -5, 0, 5, 32_767]

    @pytest.mark.parametrize("concurrency", [1, 3])
    async def test_never_more_than_asked_for(self, store: Store, concurrency: int) -> None:
        """002-35: as many as there are slots, and no more."""
        queue, gate, full = store.queue(concurrency=concurrency), Gate(), asyncio.Event()

        @queue.execute
        async def gated(job: Job[int]) -> None:
            if gate.inside + 1 == concurrency:
                full.set()
            await gate.pass_through()

        async with serving(queue), asyncio.TaskGroup() as group:
            for n in range(10):
                group.create_task(queue.enqueue_and_wait(str(n), n))
            await within(full.wait())
            for _ in range(20):
                await asyncio.sleep(0)
            gate.open()
        assert gate.most == concurrency

    async def test_attempts_per_job(self, store: Store) -> None:
        """002-36: a job's own limit wins over the queue's."""
        queue = store.queue(retry=immediate(5))
        runs: dict[str | None, int] = {}

        @queue.execute
        async def broken(job: Job[int]) -> None:
            runs[job.key] = runs.get(job.key, 0) + 1
            raise ValueError("no")

        async with serving(queue):
            for name, limit in (("one", 1), ("three", 3), ("default", None)):
                with pytest.raises(JobFailed):
                    await within(queue.enqueue_and_wait(name, 1, max_attempts=limit))
        assert runs == {"one": 1, "three": 3, "default": 5}

    async def test_max_attempts_of_the_queue(self, store: Store) -> None:
        """002-35: three, unless told; the wait between them grows."""
        queue = store.queue()
        assert (queue._retry.max_attempts, queue._retry.factor, queue._retry.jitter) == (3, 2.0, True)
        assert store.queue(max_attempts=7)._retry.max_attempts == 7


class Point(msgspec.Struct):
    x: int
    y: int = 0


@dataclasses.dataclass
class Image:
    url: str
    size: tuple[int, int] = (1, 1)


class Modelled:
    """Looks like a pydantic model, which need not be installed."""

    def __init__(self, n: int) -> None:
        self.n = n

    def model_dump(self, mode: str) -> dict[str, int]:
        return {"n": self.n}

    @classmethod
    def model_validate(cls, value: Any) -> Modelled:
        if not isinstance(value.get("n"), int):
            raise ValueError("n: expected an int")
        return cls(value["n"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Modelled) and other.n == self.n


class TestTypes:
    """002-67: a queue is generic over its payload and its result."""

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            (int, 7),
            (str, "grüße 🌍 \x00"),
            (bytes, b"\x00\xff" * 10),
            (None, None),
            (Point, Point(1, 2)),
            (Image, Image("x", (3, 4))),
            (Modelled, Modelled(5)),
            (dict[int, str], {1: "one"}),
            (list[Point], [Point(1), Point(2)]),
            (tuple[int, str], (1, "a")),
            (set[int], {1, 2}),
            (float | None, 0.1),
        ],
    )
    async def test_round_trip(self, store: Store, kind: Any, value: Any) -> None:
        queue = Queue[kind, kind]("typed", store.client())  # type: ignore[valid-type]
        payloads: list[Any] = []

        @queue.execute
        async def echo(job: Job[Any]) -> Any:
            payloads.append(job.payload)
            return job.payload

        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", value)) == value
            assert await queue.result("a") == value
        assert payloads == [value]
        assert type(payloads[0]) is type(value)

    async def test_a_payload_of_another_type_is_refused(self, store: Store) -> None:
        """X05: where it is made, not where it is run; nothing is stored."""
        queue = Queue[Point, int]("typed", store.client())
        with pytest.raises(HeadraceError, match=r"(?i)expected"):
            await queue.enqueue("a", {"x": "not a number"})  # type: ignore[arg-type]
        assert await store.count() == 0

    async def test_subclass(self, store: Store) -> None:
        """``class Images(Queue[Image, int])`` is as typed as ``Queue[Image, int](…)``."""

        class Images(Queue[Image, int]):
            pass

        queue = Images("images", store.client())
        payloads: list[Any] = []

        @queue.execute
        async def look(job: Job[Image]) -> int:
            payloads.append(job.payload)
            return 1

        async with serving(queue):
            await within(queue.enqueue_and_wait("a", Image("x")))
        assert payloads == [Image("x")]

    async def test_generic_function(self, memory: Store) -> None:
        """A type variable is no type to check against."""
        queue = _make(memory)

        @queue.execute
        async def echo(job: Job[Any]) -> Any:
            return job.payload

        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", {"x": 1})) == {"x": 1}


T = TypeVar("T")


def _make(store: Store) -> Queue[Any, Any]:
    class Maker(Generic[T]):
        def make(self) -> Queue[T, T]:
            return Queue[T, T]("generic", store.client())

    return Maker[Any]().make()


class Reversed:
    """A serde of one's own."""

    kind = 0

    def encode(self, value: str) -> bytes:
        return value[::-1].encode()

    def decode(self, body: bytes) -> str:
        return body.decode()[::-1]


class Attributed:
    """A serde like that of a protobuf message: what it cannot encode raises whatever it raises."""

    kind = 0

    def encode(self, value: Any) -> bytes:
        return value.SerializeToString()  # type: ignore[no-any-return]

    def decode(self, body: bytes) -> Any:
        raise KeyError(body)


class TestSerdes:
    """002-34: payload and result each have a serde, JSON unless told."""

    @pytest.mark.parametrize(
        ("serde", "value"),
        [
            (JsonSerde(), {"a": [1, None, "ü"]}),
            (MsgpackSerde(), {"a": b"\x00\xff", "b": [1.5, None]}),
            (MsgpackSerde(dict[int, bytes]), {1: b"x"}),
            (RawSerde(), b"\x00\xff as is"),
            (RawSerde(), b""),
            (Reversed(), "palindrome"),
        ],
        ids=["json", "msgpack", "typed msgpack", "raw", "empty", "own"],
    )
    async def test_round_trip(self, store: Store, serde: Any, value: Any) -> None:
        queue = Queue[Any, Any]("jobs", store.client(), payload_serde=serde, result_serde=serde, retry=immediate(2))
        payloads: list[Any] = []

        @queue.execute
        async def echo(job: Job[Any]) -> Any:
            payloads.append(job.payload)
            if job.attempt == 0:
                raise ValueError("a retry must not change it either")
            return job.payload

        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", value)) == value
            assert await queue.result("a") == value
        assert payloads == [value, value]

    async def test_one_for_each_direction(self, store: Store) -> None:
        queue = Queue[bytes, dict[str, int]](
            "jobs", store.client(), payload_serde=RawSerde(), result_serde=MsgpackSerde()
        )

        @queue.execute
        async def measure(job: Job[bytes]) -> dict[str, int]:
            return {"size": len(job.payload)}

        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", b"12345")) == {"size": 5}

    async def test_a_value_that_the_serde_refuses(self, store: Store) -> None:
        queue = Queue[Any, Any]("jobs", store.client(), payload_serde=RawSerde())
        with pytest.raises(CodecError, match="expected bytes, got dict"):
            await queue.enqueue("a", {"x": 1})
        assert await store.count() == 0

    async def test_a_serde_that_raises_its_own_errors(self, store: Store) -> None:
        """Whatever a serde raises is told as a typed error; nothing is stored."""
        queue = Queue[Any, Any]("jobs", store.client(), payload_serde=Attributed())
        with pytest.raises(CodecError, match="SerializeToString"):
            await queue.enqueue("a", None)
        assert await store.count() == 0

    async def test_a_result_that_the_serde_chokes_on_fails_its_job_and_no_other(self, memory: Store) -> None:
        """A handler that returns what its serde cannot encode costs a job, never a slot."""
        queue = Queue[Any, Any]("jobs", memory.client(), result_serde=Attributed())
        runs: list[str | None] = []

        @queue.execute
        async def nothing(job: Job[Any]) -> None:
            runs.append(job.key)

        async with serving(queue):
            for name in "ab":
                with pytest.raises(JobFailed, match="SerializeToString"):
                    await within(queue.enqueue_and_wait(name, 1))
        assert runs == ["a", "b"]

    async def test_a_payload_that_the_serde_chokes_on_is_not_tried_again(self, memory: Store) -> None:
        """5.3-9: decoding it once more would not help."""
        writer = Queue[Any, Any]("jobs", memory.client(), payload_serde=RawSerde())
        reader = Queue[Any, Any]("jobs", memory.client(), payload_serde=Attributed(), retry=immediate(5))

        @reader.execute
        async def unreachable(job: Job[Any]) -> None:
            raise AssertionError("it cannot be read")

        async with serving(reader):
            with pytest.raises(JobFailed) as caught:
                await within(writer.enqueue_and_wait("a", b"x"))
        assert (caught.value.attempts, caught.value.reason) == (1, "payload cannot be used")

    async def test_the_reader_must_use_the_writer_s_format(self, store: Store) -> None:
        """A payload in another format is told as such, not misread."""
        writer = Queue[Any, Any]("jobs", store.client(), payload_serde=MsgpackSerde())
        reader = Queue[Any, Any]("jobs", store.client())

        @reader.execute
        async def unreachable(job: Job[Any]) -> None:
            raise AssertionError("it cannot be read")

        async with serving(reader):
            with pytest.raises(JobFailed, match="expected JSON, got MessagePack"):
                await within(writer.enqueue_and_wait("a", 1))

    @pytest.mark.parametrize("kind", [None, "json", 16, 99, -1, 256])
    async def test_a_serde_of_an_unknown_kind_is_refused(self, memory: Store, kind: Any) -> None:
        """What could not be read again is not written."""

        class Strange(Reversed):
            pass

        Strange.kind = kind
        with pytest.raises(HeadraceError, match="kind"):
            await memory.queue(payload_serde=Strange()).enqueue("a", "x")
        assert await memory.count() == 0


COLOUR: ContextVar[str] = ContextVar("colour", default="none")


class TestIsolation:
    @pytest.mark.parametrize("style", ["async", "plain", "callback"])
    async def test_context_variables_do_not_leak(self, memory: Store, style: str) -> None:
        """What one job sets, the next does not see."""
        queue = memory.queue()
        seen: list[str] = []

        def colour(job: Job[str]) -> str:
            seen.append(COLOUR.get())
            COLOUR.set(job.payload)
            return COLOUR.get()

        if style == "async":

            @queue.execute
            async def paint(job: Job[str]) -> str:
                return colour(job)
        elif style == "plain":
            queue.execute(lambda job: colour(job))
        else:
            queue.execute(lambda job, done: done(None, colour(job)))
        async with serving(queue):
            answers = [await within(queue.enqueue_and_wait(c, c)) for c in ("red", "green", "blue")]
        assert answers == ["red", "green", "blue"]
        assert seen == ["none"] * 3

    async def test_nor_those_that_cannot_be_compared(self, memory: Store) -> None:
        """A context variable may hold anything, a value that refuses to be compared included."""

        class Awkward:
            def __eq__(self, other: object) -> bool:
                raise ValueError("the truth value of this is ambiguous")

            __hash__ = None  # type: ignore[assignment]

        variable: ContextVar[Any] = ContextVar("variable", default=None)
        variable.set(Awkward())
        queue = memory.queue()

        @queue.execute
        async def change(job: Job[int]) -> int:
            variable.set(Awkward())
            return job.payload

        async with serving(queue):
            assert await within(queue.enqueue_and_wait("a", 1)) == 1
            assert await within(queue.enqueue_and_wait("b", 2)) == 2
