"""Policies: set, looked at, and kept to by workers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import App, NewJob, PolicyInfo
from headrace.core.events import EventKind
from headrace.errors import ConfigError, InvalidJob
from headrace.limits.tenant_pauses import EXCEPTIONS
from headrace.seam.policy import QueuePause, Rate
from tests.facades.harness import Events, Gate, Store, within, working


def mailing(store: Store, **given: Any) -> tuple[App, Any, Gate, list[str]]:
    """An app with one task that stays on the doorstep."""
    app, gate, seen = store.app(**given), Gate(), list[str]()

    @app.task(queue="mail", name="send")
    async def send(to: str) -> None:
        seen.append(to)
        await gate.pass_through()

    return app, send, gate, seen


async def test_rules_are_changed_one_by_one(store: Store) -> None:
    app = store.app()
    assert (await app.policies.get("mail")).fair is False
    await app.policies.set("mail", running=5, rate="100/s", depth=1_000)
    info = await app.policies.set("mail", tenant_running=2, task_rates={"send": "1/2s"}, ageing="10m", rate=None)
    assert info == PolicyInfo(
        queue="mail",
        running=5,
        rate=None,
        tenant_running=2,
        tenant_rate=None,
        task_rates={"send": "1/2s"},
        tenant_workers=None,
        tenant_batch=None,
        ageing=600.0,
        group_running=1,
        depth=1_000,
        fair=True,
        paused_tasks={},
    )
    await app.policies.set("other", depth=5)
    assert [one.queue for one in await app.policies.list()] == ["mail", "other"]
    assert (await app.policies.get("mail")).to_dict()["task_rates"] == {"send": "1/2s"}


async def test_changes_made_at_the_same_time_are_all_kept(store: Store) -> None:
    app = store.app()
    rules = [{"running": 1}, {"depth": 2}, {"tenant_workers": 3}, {"tenant_batch": 4}, {"tenant_running": 5}]
    await asyncio.gather(*(app.policies.set("mail", **one) for one in rules))
    info = await app.policies.get("mail")
    assert (info.running, info.depth, info.tenant_workers, info.tenant_batch, info.tenant_running) == (1, 2, 3, 4, 5)


async def test_workers_keep_to_a_limit_of_the_queue(store: Store) -> None:
    app, send, gate, _ = mailing(store)
    await app.policies.set("mail", running=2)
    await app.enqueue_many(send.job(str(n)) for n in range(6))
    async with working(app):
        await gate.reached()
        gate.open()
        await within(until_empty(app))
    assert gate.most <= 2


async def test_a_change_takes_effect_while_workers_run(store: Store) -> None:
    app, send, gate, seen = mailing(store)
    events = Events()
    app.observe(events)
    await app.policies.set("mail", running=1)
    await app.enqueue_many(send.job(str(n)) for n in range(4))
    async with working(app):
        await gate.reached()
        assert len(seen) == 1
        await app.policies.set("mail", running=None)
        await within(until(lambda: len(seen) == 4))
        gate.open()


async def test_a_tenant_may_be_limited_and_paused(store: Store) -> None:
    app, send, gate, seen = mailing(store)
    gate.open()
    await app.policies.limit_tenant("mail", "acme", running=3, rate="10/s, burst 2")
    await app.policies.pause("mail", tenant="trial")
    await app.enqueue_many(send.options(tenant=tenant).job(tenant) for tenant in ("trial", "acme", "zoo"))
    await within(app.drain())
    assert sorted(seen) == ["acme", "zoo"]
    tenants = {one.tenant: one for one in await app.policies.tenants("mail")}
    assert (tenants["acme"].limit, tenants["acme"].rate) == (3, "10/s, burst 2")
    assert (tenants["trial"].paused, tenants["trial"].paused_until, tenants["trial"].waiting) == (True, None, 1)
    await app.policies.resume("mail", tenant="trial")
    await within(app.drain())
    assert sorted(seen) == ["acme", "trial", "zoo"]


async def test_a_task_may_be_paused(store: Store) -> None:
    app, send, gate, seen = mailing(store)
    gate.open()
    await app.policies.pause("mail", task="send", lasts="1h")
    await send.enqueue("ada")
    await within(app.drain())
    assert seen == []
    assert list((await app.policies.get("mail")).paused_tasks) == ["send"]
    await app.policies.resume("mail", task="send")
    await within(app.drain())
    assert seen == ["ada"]


async def test_tenants_come_page_by_page(store: Store) -> None:
    app = store.app()
    for number in range(5):
        await app.policies.limit_tenant("mail", f"t{number}", running=1)
    assert [one.tenant for one in await app.policies.tenants("mail", limit=2)] == ["t0", "t1"]
    assert [one.tenant for one in await app.policies.tenants("mail", after="t2")] == ["t3", "t4"]


async def test_a_worker_of_many_queues_starves_none(store: Store) -> None:
    app, seen = store.app(worker={"concurrency": 1, "prefetch": 0}), list[str]()

    def note(name: str) -> Any:
        @app.task(queue=name, name=name)
        async def task() -> None:
            seen.append(name)

        return task

    tasks = [note(name) for name in ("a", "b", "c")]
    await app.policies.set("a", tenant_workers=10)
    await app.policies.set("b", tenant_workers=10)
    await app.enqueue_many(task.job() for task in tasks for _ in range(10))
    await within(app.drain())
    assert {name: seen[:9].count(name) for name in "abc"} == {"a": 3, "b": 3, "c": 3}


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"speed": 1}, ["unknown rule 'speed'", "running"]),
        ({"tenant_worker": 1}, ["unknown rule 'tenant_worker' (did you mean 'tenant_workers'?)"]),
        ({"running": 0}, ["running", "at least 1", "got 0"]),
        ({"running": True}, ["running", "True"]),
        ({"running": 2**31}, ["running"]),
        ({"depth": -1}, ["depth", "at least 0"]),
        ({"tenant_batch": 0}, ["tenant_batch"]),
        ({"group_running": 0}, ["group_running"]),
        ({"tenant_workers": "2"}, ["tenant_workers", "'2'"]),
        ({"rate": 100}, ["rate", "'100/s'", "got 100"]),
        ({"rate": "0/s"}, ["rate", "'0/s'"]),
        ({"rate": "fast"}, ["rate", "'fast'"]),
        ({"rate": "10/sec"}, ["rate: expected a rate like '100/s'", "got '10/sec'"]),
        ({"rate": Rate(1, 10**9)}, ["rate", "burst of at most 999,999,999"]),
        ({"rate": "9999999/s"}, ["rate", "a million"]),
        ({"rate": "1/2d"}, ["rate", "one job a day"]),
        ({"rate": "1/1h, burst 999999"}, ["rate", "30 days"]),
        ({"tenant_rate": "x/s"}, ["tenant_rate"]),
        ({"task_rates": ["send"]}, ["task_rates", "mapping"]),
        ({"task_rates": {"send": "x"}}, ["task_rates: send"]),
        ({"ageing": "2d"}, ["ageing", "1d"]),
        ({"ageing": 0}, ["ageing"]),
    ],
)
async def test_a_rule_that_cannot_be(memory: Store, rules: dict[str, Any], words: list[str]) -> None:
    app = memory.app()
    with pytest.raises(ConfigError) as raised:
        await app.policies.set("mail", **rules)
    assert all(word in str(raised.value) for word in words), str(raised.value)
    assert await app.policies.list() == []


async def test_every_claim_looks_at_few_tasks(store: Store) -> None:
    """At most a thousand have a rate, and at most a thousand are paused."""
    async with store.app() as app:
        with pytest.raises(ConfigError, match=r"at most 1,000 tasks.*got 1,001"):
            await app.policies.set("mail", task_rates={f"t{n}": "1/s" for n in range(1_001)})
        await app.policies.set("mail", task_rates={f"t{n}": "1/s" for n in range(1_000)})
        policies = (await app.client.backend()).policies
        assert policies is not None
        for n in range(1_000):
            await policies.pause(QueuePause("mail", task=f"u{n}"))
        with pytest.raises(ConfigError, match="1,000 tasks of it are paused already"):
            await app.policies.pause("mail", task="one more")
        await app.policies.pause("mail", task="u7", lasts="1h")
        await app.policies.resume("mail", task="u8")
        await app.policies.pause("mail", task="one more")


async def test_a_pause_of_no_length_is_refused(memory: Store) -> None:
    app = memory.app()
    for pause in (app.policies.pause, app.client.pause):
        with pytest.raises(ConfigError, match="lasts: expected more than 0s, got '0s'; to end a pause, resume"):
            await pause("mail", lasts="0s")
    assert (await app.client.stats()).queues == []


async def test_tasks_that_the_app_does_not_have_are_warned_of_once(
    memory: Store, caplog: pytest.LogCaptureFixture
) -> None:
    app = memory.app()
    await app.policies.pause("mail", task="anything")
    assert caplog.messages == [], "an app without tasks knows none"

    @app.task(name="shop.send", queue="mail")
    async def send() -> None: ...

    await app.policies.pause("mail", task="shop.send")
    assert caplog.messages == []
    await app.policies.pause("mail", task="send")
    await app.policies.set("mail", task_rates={"send": "1/s", "shop.send": "1/s"})
    assert caplog.messages == ["this app has no task 'send' (did you mean 'shop.send'?); it is paused all the same"]
    assert (await app.policies.get("mail")).task_rates.keys() == {"send", "shop.send"}


async def test_names_that_cannot_be(memory: Store) -> None:
    app = memory.app()
    for work in (
        lambda: app.policies.set("", running=1),
        lambda: app.policies.get("a\0"),
        lambda: app.policies.limit_tenant("mail", 5, running=1),  # type: ignore[arg-type]
        lambda: app.policies.pause("mail", tenant="a", task="b"),
        lambda: app.policies.pause("mail", task=""),
        lambda: app.policies.tenants("mail", limit=0),
    ):
        with pytest.raises(InvalidJob):
            await work()


async def until(true: Any) -> None:
    """Return when something is so."""
    while not true():
        await asyncio.sleep(0.01)


async def until_empty(app: App) -> None:
    """Return when nothing waits or runs any more."""
    while any(queue.available or queue.running for queue in (await app.client.stats()).queues):
        await asyncio.sleep(0.01)


# -- a tenant in all queues


def shop(store: Store) -> tuple[App, Any, Any, list[str]]:
    """An app with a task in each of two queues."""
    app, seen = store.app(), list[str]()

    @app.task(queue="mail", name="send")
    async def send(to: str) -> None:
        seen.append(f"mail {to}")

    @app.task(queue="bills", name="charge")
    async def charge(to: str) -> None:
        seen.append(f"bills {to}")

    return app, send, charge, seen


async def test_a_tenant_is_paused_in_all_queues_and_resumed(store: Store) -> None:
    app, send, charge, seen = shop(store)
    for task in (send, charge):
        await task.options(tenant="acme").enqueue("acme")
        await task.options(tenant="bolt").enqueue("bolt")
    assert await app.policies.pause_tenant("acme") == ["bills", "mail"]
    await within(app.drain())
    assert sorted(seen) == ["bills bolt", "mail bolt"]
    assert await app.policies.paused_tenants() == {"acme": None}
    assert await app.policies.resume_tenant("acme") == ["bills", "mail"]
    assert await app.policies.paused_tenants() == {}
    await within(app.drain())
    assert sorted(seen) == ["bills acme", "bills bolt", "mail acme", "mail bolt"]
    assert await app.policies.resume_tenant("acme") == []


async def test_a_tenant_is_paused_in_queues_that_come_later(store: Store) -> None:
    app, send, charge, seen = shop(store)
    assert await app.policies.pause_tenant("acme", lasts="1h") == []
    job = await send.options(tenant="acme").enqueue("acme")
    await charge.options(tenant="bolt").enqueue("bolt")
    app.observe(events := Events())
    async with working(app):
        await events.until(EventKind.COMPLETED)
    assert seen == ["bills bolt"]
    assert (await app.why(job.id)).code == "tenant_paused"
    [until] = (await app.policies.paused_tenants()).values()
    [tenant] = await app.policies.tenants("mail")
    assert tenant.paused_until is not None
    assert until is not None
    assert abs((tenant.paused_until - until).total_seconds()) < 60


async def test_a_tenant_that_was_resumed_in_one_queue_stays_so(store: Store) -> None:
    app, send, charge, seen = shop(store)
    for task in (send, charge):
        await task.options(tenant="acme").enqueue("acme")
    await app.policies.pause_tenant("acme")
    await app.policies.resume("mail", tenant="acme")
    await within(app.drain())
    await within(app.drain())
    assert seen == ["mail acme"]
    await app.policies.pause_tenant("acme")
    await send.options(tenant="acme").enqueue("again")
    await within(app.drain())
    assert seen == ["mail acme"]


async def test_a_tenant_with_ten_thousand_queues(memory: Store) -> None:
    """A pause of all takes a call for each, several at a time; what was resumed alone has a bound, and is told."""
    app = memory.app()
    names = [f"q{number:05}" for number in range(10_000)]
    await app.enqueue_many(NewJob(task="send", queue=name, tenant="acme") for name in names)
    assert await app.policies.pause_tenant("acme") == names
    for name in names[:EXCEPTIONS]:
        await app.policies.resume(name, tenant="acme")
    await app.policies.resume(names[0], tenant="acme")  # again: that is no other exception
    with pytest.raises(ConfigError, match=r"resumed in 1,000 queues alone.*resume it in all queues"):
        await app.policies.resume(names[EXCEPTIONS], tenant="acme")
    [tenant] = await app.policies.tenants(names[EXCEPTIONS])
    assert tenant.paused, "what was refused changes nothing"
    await app.policies.resume(names[EXCEPTIONS], tenant="bolt")  # nobody else is refused
    assert await app.policies.resume_tenant("acme") == names[EXCEPTIONS:]
    await app.policies.pause("q00000", tenant="acme")
    await app.policies.resume("q00000", tenant="acme")


async def test_bad_pauses_of_tenants(store: Store) -> None:
    app = store.app()
    with pytest.raises(InvalidJob, match="tenant"):
        await app.policies.pause_tenant("a" * 2_000)
    with pytest.raises(ConfigError, match="lasts"):
        await app.policies.pause_tenant("a", lasts="0s")
    assert await app.policies.paused_tenants() == {}
