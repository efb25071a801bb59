"""No transaction of SQLite does work that grows with what users choose: others wait for its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.backends.sqlite import SqliteBackend, rules
from headrace.seam.policy import Policy, QueuePause
from headrace.seam.records import Cancel, Claim, Reap, Row, Selector
from headrace.testing.conformance.base import HOUR, LEASE, SECOND, T0, row, settle


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteBackend]:
    backend = SqliteBackend(tmp_path / "jobs.db", durability="normal")
    await backend.open()
    yield backend
    await backend.close()


class Transactions:
    """How many steps of SQLite's machine each transaction takes that is committed from now on."""

    def __init__(self, store: SqliteBackend) -> None:
        assert store._writer is not None
        self._connection = store._writer._connection
        self._count = 0
        self._steps: list[int] = []
        self._connection.set_progress_handler(self._step, 1)
        self._connection.set_commit_hook(self._committed)

    def _step(self) -> bool:
        self._count += 1
        return False

    def _committed(self) -> bool:
        self._steps.append(self._count)
        self._count = 0
        return False

    def taken(self) -> list[int]:
        """Since it was last asked."""
        steps, self._steps, self._count = self._steps, [], 0
        return steps


class Reads:
    """How many steps of SQLite's machine each read takes that is served from now on."""

    def __init__(self, store: SqliteBackend) -> None:
        assert store._reader is not None
        assert store._reader._connection is not None
        self._count = 0
        self._steps: list[int] = []
        store._reader._connection.set_progress_handler(self._step, 1)
        self._submit = store._reader.submit
        store._reader.submit = self._counting  # type: ignore[method-assign]

    def _step(self) -> bool:
        self._count += 1
        return False

    def _counting(self, command: Any) -> Any:
        work = command.work

        def counted(session: Any, now: int) -> Any:
            before = self._count
            found = work(session, now)
            self._steps.append(self._count - before)
            return found

        command.work = counted
        return self._submit(command)

    def taken(self) -> list[int]:
        """Since it was last asked."""
        steps, self._steps = self._steps, []
        return steps


async def fill(store: SqliteBackend, rows: Sequence[Row]) -> None:
    for first in range(0, len(rows), 1_000):
        await store.insert(rows[first : first + 1_000], T0)


def jobs(first: int, count: int, **changes: Any) -> list[Row]:
    return [row(n, **changes) for n in range(first, first + count)]


async def test_a_change_of_many_jobs_is_made_in_short_steps(store: SqliteBackend) -> None:
    await fill(store, jobs(0, 3_000))
    transactions = Transactions(store)
    assert len(await store.alter(Selector(queue="q", limit=250), Cancel(), T0)) == 250
    few = max(transactions.taken())
    assert len(await store.alter(Selector(queue="q", limit=2_500), Cancel(), T0)) == 2_500
    assert max(transactions.taken()) <= few * 1.2
    assert len(await store.alter(Selector(queue="q", limit=2_500), Cancel(), T0)) == 250


@pytest.mark.parametrize(("governed", "queues"), [(False, 1), (True, 1), (False, 30)])
async def test_a_claim_cancels_few_expired_jobs(store: SqliteBackend, governed: bool, queues: int) -> None:
    names = ("q", *(f"q{n}" for n in range(1, queues)))
    if governed:
        await store.policies.save(Policy(queue="q", tenant_batch=1_000), T0)
    await fill(store, [row(n, queue=names[n * n % queues], priority=-1, expires=SECOND) for n in range(3_000)])
    await store.insert([row(9_000)], T0)
    transactions = Transactions(store)
    cancelled, claims = 0, 0
    while not (claimed := await store.claim(Claim("w", names, 1, LEASE), T0 + SECOND)).jobs:
        assert claimed.next_in == 0
        assert 0 < len(claimed.expired) <= 250
        cancelled += len(claimed.expired)
        claims += 1
    assert cancelled + len(claimed.expired) == 3_000
    steps = transactions.taken()
    assert max(steps[1:]) <= min(steps[1:-1]) * 1.2


async def test_a_rule_for_all_tenants_reaches_them_in_short_steps(store: SqliteBackend) -> None:
    for queue, number in (("few", 1_000), ("many", 5_000)):
        await store.policies.save(Policy(queue=queue, tenant_running=1), T0)
        start = 10_000 * len(queue)
        await fill(store, [row(start + n, queue=queue, tenant=f"t{n}", delay=HOUR) for n in range(number)])
    transactions = Transactions(store)
    most = {}
    for queue in ("few", "many"):
        await store.policies.pause(QueuePause(queue, task="x"), T0)
        most[queue] = max(transactions.taken())
    assert most["many"] <= most["few"] * 1.2
    asleep = "SELECT count(*) FROM tenants WHERE wake_at > ?"
    assert store_rows(store, asleep, T0) == [(0,)]


def store_rows(store: SqliteBackend, sql: str, *bindings: Any) -> list[Any]:
    assert store._writer is not None
    return list(store._writer._connection.execute(sql, bindings))


async def test_a_number_per_group_reaches_all_groups_in_short_steps(store: SqliteBackend) -> None:
    for queue, number in (("few", 100), ("many", 800)):
        start = 10_000 * len(queue)
        await fill(store, [row(start + n, queue=queue, group=f"g{n % number}") for n in range(2 * number)])
    transactions = Transactions(store)
    most = {}
    for queue in ("few", "many"):
        await store.policies.save(Policy(queue=queue, group_running=2), T0)
        most[queue] = max(transactions.taken())
    assert most["many"] <= most["few"] * 1.2
    taken = 0
    while jobs := (await store.claim(Claim("w", ("many",), 1_000, LEASE), T0)).jobs:
        taken += len(jobs)
    assert taken == 1_600


async def test_a_reap_goes_on_where_whoever_changed_a_rule_has_died(store: SqliteBackend) -> None:
    await fill(store, [row(n, group=f"g{n % 300}") for n in range(600)])
    assert await store._write(lambda tx, now: rules.save(tx, Policy(queue="q", group_running=2), now), T0)
    called = []
    for _ in range(4):
        [[number]] = store_rows(store, "SELECT count(*) FROM called")
        called.append(number)
        await store.reap(Reap(), T0)
    assert called == [400, 500, 600, 600]


async def test_an_end_in_a_group_costs_the_same_however_many_jobs_are_called(store: SqliteBackend) -> None:
    steps = {}
    for number in (10, 2_000):
        queue = f"q{number}"
        await store.policies.save(Policy(queue=queue, group_running=number), T0)
        await fill(store, [row(10_000 * number + n, queue=queue, group="g") for n in range(3_000)])
        [job] = (await store.claim(Claim("w", (queue,), 1, LEASE), T0)).jobs
        transactions = Transactions(store)
        await store.finish([settle(job, holder="w")], T0)
        await store.insert([row(10_000 * number + 5_000, queue=queue, group="g", delay=SECOND)], T0)
        steps[number] = max(transactions.taken())
        found = await store.policies.group(queue, "g")
        assert len(found.called) == number
    assert steps[2_000] <= steps[10] * 1.2


async def test_many_jobs_of_one_group_are_called_in_short_steps(store: SqliteBackend) -> None:
    await fill(store, [row(n, group="g") for n in range(3_000)])
    transactions = Transactions(store)
    await store.policies.save(Policy(queue="q", group_running=2_000), T0)
    steps = transactions.taken()
    assert len((await store.policies.group("q", "g")).called) == 2_000
    assert max(steps) < sum(steps) / 4
    await store.policies.save(Policy(queue="q", group_running=1, version=1), T0)
    assert len((await store.policies.group("q", "g")).called) == 1


@pytest.mark.parametrize("how", ["run_at", "delay"])
async def test_jobs_of_a_group_that_come_in_the_wrong_order_are_stored_in_short_steps(
    store: SqliteBackend, how: str
) -> None:
    await store.policies.save(Policy(queue="q", tenant_batch=1), T0)
    transactions = Transactions(store)
    first = T0 if how == "run_at" else HOUR
    await store.insert([row(n, group="g", **{how: first - n}) for n in range(90)], T0)
    few = max(transactions.taken())
    await store.insert([row(n, group="h", **{how: first - n}) for n in range(1_000, 1_900)], T0)
    assert max(transactions.taken()) <= few * 1.5
    assert (await store.policies.group("q", "h")).called == (row(1_899).id,)


@pytest.mark.parametrize("of", ["priorities", "queues", "tenants", "tasks of a tenant", "delayed jobs of many queues"])
async def test_statistics_are_counted_in_short_steps(store: SqliteBackend, of: str) -> None:
    made: dict[str, Callable[[int], dict[str, Any]]] = {
        "priorities": lambda n: {"priority": n},
        "queues": lambda n: {"queue": f"q{n}"},
        "tenants": lambda n: {"tenant": f"t{n}"},
        "tasks of a tenant": lambda n: {"task": f"t{n}"},
        "delayed jobs of many queues": lambda n: {"queue": f"q{n % 10}", "delay": HOUR},
    }
    if of in ("tenants", "tasks of a tenant"):
        await store.policies.save(Policy(queue="q", tenant_batch=1), T0)
    reads = Reads(store)
    most = []
    for first, count in ((0, 6_000), (6_000, 12_000)):
        await fill(store, [row(n, **made[of](n)) for n in range(first, first + count)])
        reads.taken()
        stats = await store.stats(T0 + SECOND)
        most.append(max(reads.taken()))
        assert sum(queue.available for queue in stats.queues) == first + count
        assert {queue.oldest_due_age for queue in stats.queues} == ({None} if "delayed" in of else {SECOND})
        named = await store.stats(T0 + SECOND, queues=[queue.queue for queue in stats.queues])
        assert named.queues == stats.queues
    assert most[1] <= most[0] * 1.2


@pytest.mark.parametrize("governed", [False, True])
async def test_the_job_that_has_waited_longest_is_found_wherever_it_is(store: SqliteBackend, governed: bool) -> None:
    if governed:
        await store.policies.save(Policy(queue="q", tenant_batch=1), T0)
    await store.insert([row(0, priority=9_000, tenant="z", task="z")], T0 - SECOND)
    await fill(store, [row(n, priority=n, tenant=f"t{n % 600}", task=f"t{n % 40}") for n in range(1, 3_000)])
    await store.insert([row(3_000, queue="late", delay=HOUR)], T0 - HOUR - HOUR)
    found = (await store.stats(T0)).queues
    assert [(queue.queue, queue.oldest_due_age) for queue in found] == [("late", HOUR), ("q", SECOND)]
