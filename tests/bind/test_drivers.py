"""Commit makes a job, rollback makes none: with every connection that an app can be bound to."""

from __future__ import annotations

from contextlib import suppress

import pytest

from headrace import Handle, JobState, NewJob
from headrace.errors import ConfigError, InvalidJob, SchemaMismatch
from headrace.seam.records import Settlement
from tests.bind.conftest import Shop
from tests.bind.drivers import Driver, undone


async def test_committed_with_the_write(shop: Shop, driver: Driver) -> None:
    async with driver.begin() as connection:
        await driver.write(connection, "a")
        handle: Handle[int] = await driver.bound(shop.app, connection, "enqueue", shop.extract, "a", revision=7)
        assert not handle.duplicate
        assert shop.jobs == shop.written == []
    assert shop.jobs == ["extract"]
    assert shop.written == ["a"]
    async with shop.app:
        await shop.app.drain()
        assert shop.ran == [("a", 7)]
        assert await handle.result() == 7


async def test_rolled_back_with_the_write(shop: Shop, driver: Driver) -> None:
    async with undone(driver.begin()) as connection:
        await driver.write(connection, "a")
        await driver.bound(shop.app, connection, "enqueue", shop.extract, "a")
    assert shop.jobs == shop.written == []


async def test_the_very_first_statement_is_rolled_back(shop: Shop, driver: Driver) -> None:
    """The trap of SQLAlchemy over asyncpg: beneath a fresh session no transaction has begun yet."""
    async with undone(driver.begin()) as connection:
        await driver.bound(shop.app, connection, "enqueue", shop.extract, "a")
    assert shop.jobs == []


async def test_a_savepoint_takes_back_what_came_after_it(shop: Shop, driver: Driver) -> None:
    async with driver.begin() as connection:
        await driver.bound(shop.app, connection, "enqueue", shop.extract, "before")
        async with undone(driver.savepoint(connection)):
            await driver.bound(shop.app, connection, "enqueue", shop.extract, "within")
        await driver.bound(shop.app, connection, "enqueue", shop.extract, "after")
    await shop.drain()
    assert sorted(shop.ran) == [("after", 0), ("before", 0)]


async def test_without_a_transaction_it_is_refused(shop: Shop, driver: Driver) -> None:
    async with driver.alone() as connection:
        with pytest.raises(ConfigError, match=r"(?s)so the job would stay when you roll back; use "):
            await driver.bound(shop.app, connection, "enqueue", shop.extract, "a")
    assert shop.jobs == []


async def test_one_key_is_one_job(shop: Shop, driver: Driver) -> None:
    """Within a transaction, and across transactions."""
    keyed = shop.extract.options(key="a")
    async with driver.begin() as connection:
        first, second = [await driver.bound(shop.app, connection, "enqueue", keyed, "a") for _ in range(2)]
    assert (first.duplicate, second.duplicate, second.id) == (False, True, first.id)
    async with driver.begin() as connection:
        third = await driver.bound(shop.app, connection, "enqueue", keyed, "b")
    assert (third.duplicate, third.id, third.state) == (True, first.id, JobState.AVAILABLE)
    await shop.drain()
    async with driver.begin() as connection:
        fourth = await driver.bound(shop.app, connection, "enqueue", keyed, "c")
    assert (fourth.duplicate, fourth.state) == (True, JobState.COMPLETED)
    async with shop.app:
        assert await fourth.result() == 0
    assert shop.ran == [("a", 0)]


async def test_wrong_arguments_are_refused_before_anything_is_sent(shop: Shop, driver: Driver) -> None:
    """So the transaction goes on as if nothing had happened."""
    jobs = [shop.extract.job("a"), NewJob(task="")]
    async with driver.begin() as connection:
        await driver.write(connection, "a")
        with pytest.raises(InvalidJob, match="revision"):
            await driver.bound(shop.app, connection, "enqueue", shop.extract, "a", "seven")
        with pytest.raises(InvalidJob, match="missing"):
            await driver.bound(shop.app, connection, "enqueue", shop.extract)
        with pytest.raises(InvalidJob, match="task: expected a name"):
            await driver.bound(shop.app, connection, "enqueue_many", jobs)
    assert shop.jobs == []
    assert shop.written == ["a"]


async def test_many_at_once(shop: Shop, driver: Driver) -> None:
    """More than the store takes in one trip: all of one transaction, in order."""
    jobs = [shop.extract.job(str(n)) for n in range(1_100)]
    async with undone(driver.begin()) as connection:
        await driver.bound(shop.app, connection, "enqueue_many", jobs)
    assert shop.jobs == []
    async with driver.begin() as connection:
        handles = await driver.bound(shop.app, connection, "enqueue_many", jobs)
    assert [handle.id.bytes for handle in handles] == [job.id for job in jobs]
    assert len(shop.jobs) == 1_100
    async with driver.begin() as connection:
        assert await driver.bound(shop.app, connection, "enqueue_many", []) == []


async def test_where_there_are_no_jobs(shop: Shop, lost_driver: Driver) -> None:
    with pytest.raises(SchemaMismatch, match=r"holds no jobs in a schema 'headrace'.*headrace migrate up"):
        async with lost_driver.begin() as connection:
            await lost_driver.bound(shop.app, connection, "enqueue", shop.extract, "a")
    assert shop.jobs == []


async def test_a_role_that_may_not(shop: Shop, driver: Driver) -> None:
    """Is told so in our words, with the command that would allow it, and not where in the server it was found."""
    if not shop.run("SELECT 1 FROM pg_roles WHERE rolname = 'acme'"):
        shop.run("CREATE ROLE acme")
    shop.run("SELECT headrace.grant_v1('producer', 'acme'), headrace.confine_v1('acme', ARRAY['acme'])")
    acme, allowed = shop.extract.options(tenant="acme"), 'confined to other tenants than "{}"; nothing was stored'
    stale = Settlement(bytes(16), 1, "holder", JobState.COMPLETED)

    async def do(method: str, *args: object) -> None:
        async with driver.begin() as connection:
            await driver.execute(connection, "SET LOCAL ROLE acme")
            if method == "complete":
                await driver.complete(shop.app, connection, stale)
            else:
                await driver.bound(shop.app, connection, method, *args)

    async def refused(method: str, *args: object) -> str:
        with pytest.raises(ConfigError) as told:
            await do(method, *args)
        assert "\n" not in str(told.value)
        assert "refuses the role of this connection: " in str(told.value)
        return str(told.value)

    assert allowed.format("") in await refused("enqueue", shop.extract, "a")
    other = await refused("enqueue_many", [acme.job("a"), shop.extract.options(tenant="other").job("a")])
    assert allowed.format("other") in other
    assert other.endswith("headrace migrate grant producer ROLE --tenant NAME, once for each tenant that it is to have")
    assert (await refused("complete")).endswith("It takes a worker: headrace migrate grant worker ROLE")
    await do("enqueue", acme, "a")
    assert shop.jobs == ["extract"]


async def test_a_handler_that_lost_its_job_cannot_commit(shop: Shop, driver: Driver) -> None:
    """Fenced off by the store itself: even who goes on and commits has written nothing."""
    stale = Settlement(bytes(16), 1, "holder", JobState.COMPLETED)
    completed: bool | None = None
    with suppress(Exception):  # some drivers say at the commit that there is nothing to commit, others do not
        async with driver.begin() as connection:
            await driver.write(connection, "a")
            completed = await driver.complete(shop.app, connection, stale)
    assert completed is False
    assert shop.written == []
