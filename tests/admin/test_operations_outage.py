"""A bulk operation whose store is killed in the middle: it goes on when the store is back, and changes no job twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from servers.postgres import Postgres
from servers.valkey import Valkey

from headrace import Admin, App, JobState, immediate
from headrace.admin.operations import QUEUE, Operation, Operator, operator_client
from headrace.errors import Unavailable
from headrace.seam.records import Selector
from tests.facades.harness import within

COUNT = 1_200
PACE = 300
"""A second: the operation takes four."""
MAKERS: dict[str, Callable[[], Postgres | Valkey]] = {
    "postgres": Postgres,
    "valkey": lambda: Valkey(settings={"appendonly": "yes", "appendfsync": "always"}),
}


@pytest.fixture(params=MAKERS)
def server(request: Any) -> Iterator[Postgres | Valkey]:
    made = MAKERS[request.param]()
    made.start()
    yield made
    made.close()


def shop(url: str) -> App:
    app = App(url, worker={"lease": "2s"}, patience="60s")

    @app.task(queue="pay", name="charge", retry=immediate(1))
    async def charge(user: int) -> None:
        raise ValueError("no card")

    return app


@asynccontextmanager
async def operated(url: str) -> Any:
    """An admin of dead letters, and a worker that carries operations out."""
    app = shop(url)
    async with app:
        await app.enqueue_many(app.tasks["charge"].job(user) for user in range(COUNT))  # type: ignore[union-attr]
        await within(app.drain(), 120)
        runner = Operator(operator_client(app.client)).app()
        async with runner:
            work = asyncio.ensure_future(runner.work([QUEUE]))
            yield app, Admin(app.client)
            runner.stop()
            await within(work, 60)


async def until(admin: Admin, op_id: str, holds: Callable[[Operation], bool]) -> Operation:
    async with asyncio.timeout(240):
        while True:
            with suppress(Unavailable):
                found = await admin.operation(op_id)
                if holds(found):
                    return found
            await asyncio.sleep(0.05)


async def requeued(app: App) -> int:
    """How many jobs were requeued; the others are as they were, and there are no more and no fewer."""
    jobs = await app.client.list_jobs(Selector(queue="pay"), limit=2 * COUNT)
    assert len({job.id for job in jobs}) == COUNT
    assert {job.state for job in jobs} <= {JobState.AVAILABLE, JobState.FAILED}
    assert {job.attempt for job in jobs if job.state is JobState.AVAILABLE} == {0}
    return sum(job.state is JobState.AVAILABLE for job in jobs)


async def killed(server: Postgres | Valkey) -> None:
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(1.0)  # so that calls fail, and are repeated
    await asyncio.to_thread(server.start)


async def test_it_goes_on_when_the_store_is_back(server: Postgres | Valkey) -> None:
    async with operated(server.url()) as (app, admin):
        found = await admin.count("queue:pay state:dead")
        submitted = await admin.submit("queue:pay state:dead", "requeue", expected=found.number, pace=PACE)
        met = await until(admin, submitted.id, lambda one: one.met > 0)
        assert met.met < COUNT
        await killed(server)
        done = await until(admin, submitted.id, lambda one: one.state.terminal)
        assert (done.state, done.error) == (JobState.COMPLETED, "")
        assert await requeued(app) == COUNT
        assert done.changed <= COUNT, "none is counted twice"
        assert [entry.action for entry in await admin.audit.entries()] == ["submit requeue"]


async def cancelled(admin: Admin, op_id: str) -> None:
    """As a person does it: a page that cannot be read is asked for again."""
    while True:
        try:
            await admin.cancel_operation(op_id, actor="ada")
            return
        except Unavailable:
            await asyncio.sleep(0.1)


async def test_it_is_cancelled_while_the_store_is_away(server: Postgres | Valkey) -> None:
    async with operated(server.url()) as (app, admin):
        submitted = await admin.submit("queue:pay state:dead", "requeue", expected=COUNT, pace=PACE)
        await until(admin, submitted.id, lambda one: one.met > 0)
        away = asyncio.ensure_future(killed(server))
        await within(cancelled(admin, submitted.id), 120)
        await away
        ended = await until(admin, submitted.id, lambda one: one.state.terminal)
        assert ended.state is JobState.CANCELLED
        assert 0 < await requeued(app) < COUNT
        assert [entry.action for entry in await admin.audit.entries()][-1] == "submit requeue"
