"""Corner cases of names and bytes: ids, queues, prefixes and payloads that look like something else."""

from __future__ import annotations

import asyncio

import pytest

from headrace import Client, Duplicate, EventKind, Job, MsgpackSerde, Queue, Queued, RawSerde, immediate
from headrace.api import waiter
from headrace.api.connection import open_backend
from headrace.errors import JobCancelled
from tests.facades.harness import Calls, Events, Store, serving, settings, within

IDS = (
    "a:b", "a", "a:exp", "a:b:exp", "a/b", "../../etc/passwd", "a.msg", ".", "..", "{a}", "{jobs}", "*", "a b", "a\nb",
    "'; --", "%s", "é", "e\u0301", "🙂", "x" * 1_024,
)  # fmt: skip
BYTES = (b"", b"\0", b"\xff\xfe\0\r\n", bytes(range(256)), b'{"not": "json', b"\xc3\x28" * 1_000)


@pytest.mark.parametrize("store", ["valkey"], indirect=True)
async def test_stores_side_by_side_hear_their_own_news_and_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P15: with prefixes on one server; nothing polls, so what comes was announced."""
    monkeypatch.setattr(waiter, "_POLL", 3_600.0)
    store.backend()
    clients = [Client(open_backend(f"{store.url}?prefix={prefix}"), settings(url=store.url)) for prefix in "ab"]
    queues = [Queue[int, str]("jobs", client, retry=immediate(2)) for client in clients]
    heard = [Calls(), Calls()]
    for queue, calls, name in zip(queues, heard, "ab", strict=True):
        for event in ("failing", "cancelled"):
            queue.on(event, lambda id, event=event, calls=calls: calls(event, id))

        @queue.execute
        async def fail_once(job: Job[int], name: str = name) -> str:
            if not job.attempt:
                raise ValueError("not yet")
            return name

    async with serving(*queues), asyncio.TaskGroup() as group:
        waiting = [group.create_task(queue.enqueue_and_wait("same", 1)) for queue in queues]
        assert await within(asyncio.gather(*waiting)) == ["a", "b"]
        events = Events()
        clients[0].observers.add(events)
        cancelled = group.create_task(_raised(queues[0], "later"))
        await events.until(EventKind.QUEUED)
        await queues[0].cancel("later")
        assert isinstance(await within(cancelled), JobCancelled)
    assert [calls.seen for calls in heard] == [[("failing", "same"), ("cancelled", "later")], [("failing", "same")]]
    for client in clients:
        await client.close()


async def _raised(queue: Queue[int, str], name: str) -> Exception | None:
    try:
        await queue.enqueue_and_wait(name, 1, delay="1h")
    except Exception as error:
        return error
    return None


async def test_an_id_is_data(store: Store) -> None:
    """P16: no character ends it, splits it, or leads anywhere; events tell it as it was given."""
    queue, completed = store.queue(concurrency=4), Calls()
    queue.on("completed", completed)

    @queue.execute
    async def echo(job: Job[int]) -> int:
        return job.payload

    for number, name in enumerate(IDS):
        assert await queue.enqueue(name, number) == Queued()
        assert await queue.enqueue(name, -1) == Duplicate("queued", 0)
    async with serving(queue):
        assert sorted(await completed.until(len(IDS))) == sorted((name, number) for number, name in enumerate(IDS))
    assert [await queue.result(name) for name in IDS] == list(range(len(IDS)))


async def test_bytes_stay_as_they_are_over_a_retry_too(store: Store) -> None:
    """P17: in any serde; and the entry of the first attempt is not left behind."""
    queue = Queue[bytes, bytes](
        "jobs", store.client(), payload_serde=RawSerde(), result_serde=MsgpackSerde(bytes), retry=immediate(2)
    )

    @queue.execute
    async def second_time(job: Job[bytes]) -> bytes:
        if not job.attempt:
            raise ValueError("not yet")
        return job.payload

    async with serving(queue):
        for number, payload in enumerate(BYTES):
            assert await within(queue.enqueue_and_wait(f"{number}", payload)) == payload
    [found] = (await queue.client.stats()).queues
    assert (found.completed, found.available, found.running) == (len(BYTES), 0, 0)


async def test_long_names_that_differ_at_their_end_are_different(store: Store) -> None:
    """P24: names are data, so no limit on identifiers cuts them, and no quotes are needed."""
    names = [f'{"q" * 1_000}"; DROP TABLE jobs; --{number}' for number in range(3)]
    client = store.client()
    queues = [Queue[str, str](name, client) for name in names]
    for queue in queues:

        @queue.execute
        async def where(job: Job[str], name: str = queue.name) -> str:
            return name

    async with serving(*queues):
        assert [await within(queue.enqueue_and_wait("a", "")) for queue in queues] == names
    assert sorted(found.queue for found in (await client.stats()).queues) == sorted(names)
