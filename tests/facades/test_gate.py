"""Back-pressure: what becomes of jobs that a queue has no room for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from headrace import App, EventKind
from headrace.errors import ConfigError, InvalidJob, QueueFull, Unavailable, WaitTimeout
from headrace.seam.records import Inserted, Row, Stamp
from tests.facades.harness import Events, Store, Tapped, World, simulate, within


def filling(store: Store, **given: Any) -> tuple[App, Any, list[int]]:
    app, seen = store.app(**given), list[int]()

    @app.task(queue="mail", name="send")
    async def send(number: int) -> None:
        seen.append(number)

    return app, send, seen


async def test_a_full_queue_raises_and_stores_nothing(store: Store) -> None:
    app, send, _ = filling(store)
    await app.policies.set("mail", depth=2)
    await send.enqueue(1)
    await send.enqueue(2)
    job = send.job(3)
    with pytest.raises(QueueFull) as raised:
        await app.client.enqueue(job)
    error = raised.value
    assert (error.code, error.queue, error.admitted) == ("queue_full", "mail", [])
    assert str(error) == (
        "the job was not stored: queue 'mail' is full (2 of 2 jobs wait). Try again later, enqueue with "
        "when_full='block' or overflow=…, start workers, or raise the depth"
    )
    assert (error.full, error.refused) == (["mail"], [job.job_id])
    assert error.to_dict()["refused"] == [str(job.job_id)]
    assert await store.count() == 2


async def test_of_many_jobs_those_that_fit_are_stored_and_the_error_tells_which(store: Store) -> None:
    app, send, seen = filling(store)
    events = Events()
    app.observe(events)
    await app.policies.set("mail", depth=3)
    jobs = [send.job(n) for n in range(5)]
    with pytest.raises(QueueFull, match="2 of 5 jobs were not stored") as raised:
        await app.enqueue_many(jobs)
    ids = [job.job_id for job in jobs]
    assert (raised.value.admitted, raised.value.refused) == (ids[:3], ids[3:])
    assert len(events.of(EventKind.REFUSED)) == 2
    await within(app.drain())
    assert seen == [0, 1, 2]
    handles = await app.enqueue_many(jobs)
    assert [handle.id for handle in handles] == ids
    await within(app.drain())
    assert sorted(seen) == [0, 1, 2, 3, 4]


async def test_jobs_may_go_to_another_queue(store: Store) -> None:
    app, seen = store.app(), list[str]()

    @app.task(queue="mail", name="send", overflow="slow mail")
    async def send(to: str) -> None:
        seen.append(to)

    assert app.queues == ["mail", "slow mail"]
    await app.policies.set("mail", depth=1)
    await app.policies.set("slow mail", depth=1)
    first, second = await app.enqueue_many([send.job("ada"), send.job("bob")])
    assert [(await handle.info()).queue for handle in (first, second)] == ["mail", "slow mail"]
    with pytest.raises(QueueFull) as raised:
        await send.enqueue("cid")
    assert str(raised.value) == (
        "the job was not stored: queue 'mail' is full (1 of 1 jobs wait), and so is its overflow 'slow mail' (1 of 1 "
        "jobs wait). Try again later, enqueue with when_full='block', start workers, or raise the depth"
    )
    assert (raised.value.queue, raised.value.full) == ("mail", ["mail", "slow mail"])
    await within(app.drain())
    assert sorted(seen) == ["ada", "bob"]


async def test_jobs_may_wait_for_room(store: Store) -> None:
    app, send, seen = filling(store)
    events = Events()
    app.observe(events)
    await app.policies.set("mail", depth=2)
    await send.enqueue(0)
    await send.enqueue(1)
    waiting = asyncio.ensure_future(
        app.enqueue_many(send.options(when_full="block").job(number) for number in range(2, 6))
    )
    await events.until(EventKind.REFUSED, 4)
    assert not waiting.done()
    while not waiting.done():
        await within(app.drain())
    assert len(await waiting) == 4
    await within(app.drain())
    assert sorted(seen) == list(range(6))


async def test_but_not_for_ever(store: Store) -> None:
    app, send, _ = filling(store, patience="200ms")
    await app.policies.set("mail", depth=0)
    with pytest.raises(QueueFull, match=r"Try again later, enqueue with overflow=…, start workers"):
        await within(send.options(when_full="block").enqueue(1))
    assert await store.count() == 0


class Silent(Tapped):
    """A store that leaves the fourth insert without an answer."""

    inserts = 0

    async def insert(self, rows: Any, at: Any = None) -> Any:
        self.inserts += 1
        if self.inserts == 4:
            await asyncio.Event().wait()
        return await self.inner.insert(rows, at)


@pytest.mark.parametrize(
    ("wrap", "told"),
    [
        (None, "queue 'mail', or the store, was full for 5.0 s: the job was not stored"),
        (
            Silent,
            "queue 'mail', or the store, was full for 5.0 s; the store was asked again and has not answered: "
            "whether the job was stored is unknown",
        ),
    ],
)
def test_a_call_that_waits_for_room_in_vain_says_so(wrap: Any, told: str) -> None:
    async def main(world: World) -> tuple[str, int]:
        app = world.app()

        @app.task(queue="mail", name="send", when_full="block")
        async def send(number: int) -> None: ...

        await app.policies.set("mail", depth=0)
        with pytest.raises(WaitTimeout) as raised:
            await send.options(wait="5s").call(1)
        waiting = sum(queue.available for queue in (await app.client.stats()).queues)
        await app.client.close()
        return str(raised.value), waiting

    assert simulate(main, wrap) == (told, 0)


async def test_a_caller_that_waits_for_room_is_told_that_the_client_was_closed(store: Store) -> None:
    app, send, _ = filling(store)
    events = Events()
    app.observe(events)
    await app.policies.set("mail", depth=0)
    job = send.options(when_full="block").job(1)
    waiting = asyncio.ensure_future(app.client.enqueue(job))
    await events.until(EventKind.REFUSED)
    await within(app.client.close())
    with pytest.raises(QueueFull, match=r"the job was not stored: .* The client was closed while") as raised:
        await within(waiting)
    assert raised.value.refused == [job.job_id]
    assert await store.count() == 0


async def test_of_several_full_queues_the_first_are_named(memory: Store) -> None:
    app, send, _ = filling(memory)
    queues = [f"q{n}" for n in range(5)]
    for queue in queues:
        await app.policies.set(queue, depth=0)
    with pytest.raises(QueueFull, match=r"5 of 6 jobs .* 'q0' is full .* 'q2' is full .* 2 more queues") as raised:
        await app.enqueue_many([send.options(queue=queue).job(1) for queue in ("free", *queues)])
    assert (raised.value.queue, raised.value.full, len(raised.value.admitted)) == ("q0", queues, 1)


async def test_a_refusal_costs_one_call(memory: Store) -> None:
    app, send, _ = filling(memory)
    await app.policies.set("mail", depth=0)
    backend = app.client._backend
    assert backend.policies is not None

    async def away(*given: object, **also: object) -> Any:
        raise Unavailable("the server does not answer")

    backend.policies.find = backend.stats = away  # type: ignore[method-assign]
    with pytest.raises(QueueFull, match=r"queue 'mail' is full \(0 of 0 jobs wait\)") as raised:
        await send.enqueue(1)
    assert raised.value.full == ["mail"]


async def test_where_it_is_not_known_what_is_full_both_are_named(memory: Store) -> None:
    app, send, _ = filling(memory)
    await app.policies.set("mail", depth=0)
    backend = app.client._backend
    insert = backend.insert

    async def silent(rows: Sequence[Row], at: Stamp = None) -> list[Inserted]:
        return [replace(answer, room=None) for answer in await insert(rows, at)]

    backend.insert = silent  # type: ignore[method-assign]
    with pytest.raises(QueueFull, match="no room in queue 'mail': it, or the store, is full") as raised:
        await send.enqueue(1)
    assert raised.value.full == []


async def test_a_duplicate_needs_no_room(store: Store) -> None:
    app, send, _ = filling(store)
    await send.options(key="k").enqueue(1)
    await app.policies.set("mail", depth=1)
    assert (await send.options(key="k").enqueue(2)).duplicate


async def test_the_whole_store_has_a_depth(store: Store) -> None:
    app, send, _ = filling(store)
    info = await app.policies.limit_store(2)
    assert (info.queue, info.depth) == ("", 2)
    await send.enqueue(1)
    await send.options(queue="other").enqueue(2)
    with pytest.raises(QueueFull) as raised:
        await send.options(queue="third").enqueue(3)
    assert str(raised.value) == (
        "the job was not stored: the store is full (2 of 2 jobs wait in all queues together). Try again later, "
        "enqueue with when_full='block', start workers, or raise the depth"
    )
    assert (raised.value.queue, raised.value.full) == ("third", [""])
    await app.policies.limit_store(None)
    await send.options(queue="third").enqueue(3)


async def test_wishes_that_cannot_be(memory: Store) -> None:
    app, send, _ = filling(memory)
    with pytest.raises(InvalidJob, match="when_full: expected 'raise' or 'block', got 'wait'"):
        await send.options(when_full="wait").enqueue(1)
    with pytest.raises(InvalidJob, match="overflow"):
        await send.options(overflow="").enqueue(1)
    with pytest.raises(InvalidJob, match="overflow: expected a queue other than the job's own, got 'mail'"):
        await send.options(overflow="mail").enqueue(1)
    with pytest.raises(ConfigError, match="overflow: expected a queue other than its own, got 'mail'"):
        app.task(name="round", queue="mail", overflow="mail")(abs)
    with pytest.raises(ConfigError, match="when_full"):
        app.task(name="other", when_full="wait")(abs)
    assert await memory.count() == 0


def test_a_refusal_and_its_reason_ask_about_one_queue() -> None:
    """However many queues there are, nobody asks for the statistics of all of them."""
    asked: list[Any] = []

    class Asked(Tapped):
        async def stats(self, at: Any = None, *, queues: Any = None) -> Any:
            asked.append(queues)
            return await self.inner.stats(at, queues=queues)

    async def main(world: World) -> None:
        app = world.app()

        @app.task(queue="mail", name="send")
        async def send() -> None: ...

        await app.policies.set("mail", depth=1)
        job = await send.enqueue()
        with pytest.raises(QueueFull, match="1 of 1 jobs wait"):
            await send.enqueue()
        assert asked == []
        await app.why(job.id)
        await app.client.close()

    simulate(main, Asked)
    assert [list(queues) for queues in asked] == [["mail"]]
