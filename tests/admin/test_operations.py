"""Bulk operations and the audit log, on every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import Action, Admin, App, Event, EventKind, JobState, NewJob, immediate
from headrace.admin.operations import QUEUE, Operator, operator_client
from headrace.core.clock import ManualClock
from headrace.errors import ConfigError, JobNotFound, QueueFull, StoreFull
from headrace.seam.records import Beat, Claim
from tests.facades.harness import Store, within


async def dead(store: Store, count: int) -> App:
    """An app with so many dead letters, and one job that completed."""
    app = store.app()
    broken = True

    @app.task(queue="pay", name="charge", retry=immediate(1))
    async def charge(user: int) -> None:
        if broken and user >= 0:
            raise ValueError("no card")

    await app.client.open()
    await app.enqueue_many([charge.job(user) for user in range(count)])
    await charge.enqueue(-1)
    await app.drain()
    return app


async def carried_out(admin: Admin, op_id: str) -> Any:
    """The operation, once it has ended; a worker of its own does it."""
    app = Operator(operator_client(admin.client)).app()
    async with app:
        await within(app.drain([QUEUE]))
        return await admin.operation(op_id)


async def test_an_operation_from_preview_to_end(store: Store) -> None:
    app = await dead(store, 450)
    admin = Admin(app.client)
    filter = "queue:pay state:dead args.user<400"
    assert (await admin.count(filter)).number == 400
    submitted = await admin.submit(filter, Action.REQUEUE, expected=400, actor="ada", pace=100_000)
    assert (submitted.state, submitted.expected, submitted.met) == (JobState.AVAILABLE, 400, 0)
    done = await carried_out(admin, submitted.id)
    assert (done.state, done.met, done.changed, done.error) == (JobState.COMPLETED, 400, 400, "")
    assert (await admin.count("queue:pay state:available")).number == 400
    assert (await admin.count("state:dead")).number == 50
    [listed] = await admin.operations()
    assert listed == done
    [entry] = await admin.audit.entries()
    assert (entry.actor, entry.action) == ("ada", "submit requeue")
    assert entry.details == {"filter": filter, "expected": 400}
    await app.client.close()


async def test_operations_are_taken_when_there_is_no_room_for_other_jobs(store: Store) -> None:
    """They make room."""
    app = await dead(store, 30)
    admin = Admin(app.client)
    charge = app.tasks["charge"]
    await app.enqueue_many([charge.job(user) for user in range(10)])
    await app.policies.limit_store(depth=5)
    with pytest.raises(QueueFull):
        await charge.enqueue(1)
    done = await carried_out(admin, (await admin.submit("queue:pay state:due", "delete")).id)
    assert (done.state, done.changed) == (JobState.COMPLETED, 10)
    await app.policies.limit_store(depth=None)
    await app.janitor.set_budget(1)
    await app.client._budget.measure()
    with pytest.raises(StoreFull):
        await charge.enqueue(1)
    done = await carried_out(admin, (await admin.submit("state:dead", "delete")).id)
    assert (done.state, done.changed) == (JobState.COMPLETED, 30)
    await app.client.close()


async def test_operations_do_not_count_what_they_do_not_meet(memory: Store) -> None:
    app = await dead(memory, 3)
    admin = Admin(app.client)
    await carried_out(admin, (await admin.submit("state:dead", "requeue")).id)
    submitted = await admin.submit("", "cancel", expected=(await admin.count("")).number)
    done = await carried_out(admin, submitted.id)
    assert (done.expected, done.met) == (4, 4)
    await app.client.close()


async def test_a_refused_operation_is_noted_as_refused(memory: Store) -> None:
    app = await dead(memory, 3)
    admin = Admin(app.client)
    await app.policies.limit_store(depth=0)
    with pytest.raises(QueueFull):
        await admin.submit("state:dead", "delete", actor="ada")
    assert [one.action for one in await admin.audit.entries()] == ["submit delete: refused", "submit delete"]
    await app.client.close()


async def test_every_action(memory: Store) -> None:
    app = await dead(memory, 5)
    admin = Admin(app.client)
    charge = app.tasks["charge"]
    await app.enqueue_many([charge.options(queue="mail").job(user) for user in range(10)])
    for action, argument, filter, check in (
        ("pause", None, "queue:mail state:available args.user<5", "queue:mail state:paused"),
        ("resume", None, "queue:mail state:paused", "queue:mail state:available"),
        ("prioritise", "7", "queue:mail args.user=3", "queue:mail priority:7"),
        ("reschedule", "1h", "queue:mail args.user<2", "queue:mail state:scheduled"),
        ("move", "sms", "queue:mail args.user=9", "queue:sms"),
        ("cancel", None, "queue:sms", "queue:sms state:cancelled"),
        ("delete", None, "state:dead", ""),
    ):
        count = (await admin.count(filter)).number
        assert count
        done = await carried_out(admin, (await admin.submit(filter, action, argument)).id)
        assert (done.changed, done.met) == (count, count), action
        if check:
            assert (await admin.count(check)).number >= count, action
    assert (await admin.count("state:dead")).number == 0
    await app.client.close()


async def test_what_is_wrong_is_refused_before_anything_is_done(memory: Store) -> None:
    app = await dead(memory, 3)
    admin = Admin(app.client)
    for given, told in (
        ({"filter": "colour:red", "action": "requeue"}, "unknown field"),
        ({"filter": "", "action": "explode"}, "action: expected one of requeue"),
        ({"filter": "", "action": "move"}, "expected an argument"),
        ({"filter": "", "action": "requeue", "argument": "x"}, "expected no argument"),
        ({"filter": "", "action": "prioritise", "argument": "x"}, "expected a whole number"),
        ({"filter": "", "action": "reschedule", "argument": "soon"}, "expected a duration"),
        ({"filter": "state:dead", "action": "delete", "expected": 2}, "expected 2 jobs, got 3 by now"),
        ({"filter": "state:dead", "action": "delete", "pace": 0}, "pace"),
    ):
        with pytest.raises(ConfigError, match=told):
            await admin.submit(**given)  # type: ignore[arg-type]
    assert await admin.operations() == []
    assert await admin.audit.entries() == []
    with pytest.raises(JobNotFound, match="no operation"):
        await admin.operation((await admin.jobs()).jobs[0].id)
    await app.client.close()


async def test_an_operation_can_be_cancelled(store: Store) -> None:
    app = await dead(store, 300)
    admin = Admin(app.client)
    submitted = await admin.submit("state:dead", "delete", actor="ada")
    stopped = await admin.cancel_operation(submitted.id, actor="bo")
    assert stopped.state is JobState.CANCELLED
    assert (await carried_out(admin, submitted.id)).state is JobState.CANCELLED
    assert (await admin.count("state:dead")).number == 300
    assert [(one.actor, one.action) for one in await admin.audit.entries()] == [
        ("bo", "cancel operation"),
        ("ada", "submit delete"),
    ]
    await app.client.close()


async def test_a_running_operation_stops_in_the_middle_and_says_how_far_it_came(memory: Store) -> None:
    app = await dead(memory, 2_000)
    admin = Admin(app.client)
    submitted = await admin.submit("state:dead", "requeue", pace=200)
    runner = Operator(operator_client(app.client)).app()
    turned = asyncio.Event()

    @runner.observe
    def hear(event: Event) -> None:
        if event.kind is EventKind.SNOOZED:
            turned.set()

    async def cancel() -> None:
        await turned.wait()
        await admin.cancel_operation(submitted.id)

    async with runner, asyncio.TaskGroup() as group:
        group.create_task(within(cancel()))
        await within(runner.drain([QUEUE]))
    ended = await admin.operation(submitted.id)
    assert 0 < ended.met < 2_000
    assert (await admin.count("state:dead")).number < 2_000
    await app.client.close()


async def test_an_operation_whose_process_died_goes_on_without_other_workers(store: Store) -> None:
    """Whoever carries out operations leaves the upkeep to workers; if there are none, it takes its own job back."""
    clock = ManualClock(1_800_000_000_000_000)
    app = App(store.client(clock=clock))
    admin = Admin(app.client)
    await app.client.enqueue(NewJob(task="charge", queue="pay"))
    submitted = await admin.submit("queue:pay", "cancel")
    backend = await app.client.backend()
    assert len((await backend.claim(Claim("dead", (QUEUE,), 1, 30_000_000), clock.stamp())).jobs) == 1
    await backend.renew(Beat("busy", "busy", ("pay",), 30_000_000, ttl=30_000_000), clock.stamp())
    clock.advance("31s")
    await backend.renew(Beat("busy", "busy", ("pay",), 30_000_000, ttl=30_000_000), clock.stamp())
    assert (await carried_out(admin, submitted.id)).state is JobState.RUNNING, "a worker is there to take it back"
    await backend.renew(Beat("busy", "busy", ("pay",), 30_000_000, leaving=True), clock.stamp())
    done = await carried_out(admin, submitted.id)
    assert (done.state, done.changed) == (JobState.COMPLETED, 1)
    await app.client.close()


async def test_what_operators_do_is_noted_first(store: Store) -> None:
    app = await dead(store, 2)
    admin = Admin(app.client)
    [first, second] = (await admin.jobs("state:dead")).jobs
    [changed] = await admin.change([first.id], "requeue", actor="ada")
    assert (changed.before, changed.after, changed.changed) == (JobState.FAILED, JobState.AVAILABLE, True)
    await admin.pause_queue("pay", "1h", actor="ada")
    assert (await admin.queues("pay"))[0].paused
    await admin.resume_queue("pay")
    await admin.job(second.id, reveal=True, actor="bo")
    entries = await admin.audit.entries()
    assert [one.action for one in entries] == ["reveal", "resume queue", "pause queue", "requeue"]
    assert [one.actor for one in entries][2:] == ["ada", "ada"]
    assert entries[0].details == {"job": str(second.id)}
    assert entries[2].details == {"queue": "pay", "lasts": "1h"}
    assert entries[3].details == {"ids": [str(first.id)], "jobs": 1}
    assert [one.action for one in await admin.audit.entries(entries[1].number, 1)] == ["pause queue"]
    await app.client.close()
