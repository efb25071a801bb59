"""What one call may cost a Valkey server, which serves nobody else meanwhile: commands, jobs read, bytes sent."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from headrace.backends.redis import RedisBackend
from headrace.backends.redis.scripts import SCRIPTS
from headrace.seam.policy import Policy
from headrace.seam.records import Beat, Cancel, Claim, Hold, JobId, Reap, Selector, SweepClause, SweepTarget
from headrace.seam.ticks import BUCKETS, Look, NewTick, Plan, Save, TickOutcome
from headrace.testing.conformance.base import HOUR, LEASE, SECOND, T0, job_id, row, settle
from headrace.testing.conformance.ticks import fires, moved, schedule, uid
from headrace.types import JobState
from tests.valkey import server, stores

BASE = "headrace{jobs}"
KIB, MIB = 1 << 10, 1 << 20
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[RedisBackend]:
    backend = stores.connect(tmp_path)
    await backend.open()
    yield backend
    await backend.close()


class Commands:
    """What the server was asked, by clients and by scripts: name and arguments, as it reports them."""

    def __init__(self) -> None:
        self.all: list[list[str]] = []

    def count(self, *names: str) -> int:
        """So many commands of these names; of any, without one."""
        return sum(not names or words[0] in names for words in self.all)

    def calls(self) -> list[Commands]:
        """The same, by the scripts that were run; those that the server did not know did nothing."""
        found: list[Commands] = []
        for words in self.all:
            if words[0] in ("EVAL", "EVALSHA"):
                found.append(Commands())
            if found:
                found[-1].all.append(words)
        return [script for script in found if script.count() > 1]

    def read(self, name: str) -> int:
        """Fields that were read of a hash."""
        reads = [words for words in self.all if words[0] in ("HGET", "HMGET") and words[1] == f"{BASE}:{name}"]
        return sum(len(words) - 2 for words in reads)


@contextmanager
def commands() -> Iterator[Commands]:
    """All that happens in the block."""
    found = Commands()
    with socket.create_connection(("127.0.0.1", server().port), 10) as line, line.makefile("rb") as told:
        line.sendall(b"MONITOR\r\n")
        assert told.readline() == b"+OK\r\n"
        yield found
        server().call("ECHO", "that was all")
        for said in told:
            words = [word.decode() for word in _WORD.findall(said)]
            if words == ["ECHO", "that was all"]:
                return
            found.all.append([words[0].upper(), *words[1:]])


@contextmanager
def sent() -> Iterator[list[int]]:
    """Bytes that the server says in the block, and a little for the question."""
    found: list[int] = []
    server().call("CONFIG", "RESETSTAT")
    yield found
    found.append(int(server().info("stats")["total_net_output_bytes"]))


async def fill(
    store: RedisBackend, count: int, size: int = 2, *, first: int = 0, at: int = T0, expires: int | None = None
) -> None:
    """Insert jobs, in batches that a server takes."""
    step = max(1, min(1_000, 16 * MIB // size))
    for begin in range(first, first + count, step):
        numbers = range(begin, min(first + count, begin + step))
        await store.insert([row(n, cells={"blob": bytes(size)}, expires=expires) for n in numbers], at)


async def lease(store: RedisBackend, count: int, *, holder: str = "w1", lease_for: int = LEASE, at: int = T0) -> None:
    for taken in range(0, count, 1_000):
        claim = Claim(holder, ("q",), min(1_000, count - taken), lease_for, max_bytes=1 << 40)
        assert len((await store.claim(claim, at)).jobs) == claim.limit


# -- claims


async def test_a_claim_cancels_a_bounded_number_of_jobs_that_have_expired(store: RedisBackend) -> None:
    """The rest is left to the next one, which is told to come at once."""
    await fill(store, 5_000, expires=1)
    await fill(store, 1, first=5_000)
    cancelled: list[JobId] = []
    for _ in range(5):
        with commands() as asked:
            claimed = await store.claim(Claim("w1", ("q",), 1, LEASE), T0 + SECOND)
        assert claimed.jobs == []
        assert claimed.next_in == 0
        assert len(claimed.expired) <= 1_000
        assert asked.count() < 20_000
        cancelled += [job.id for job in claimed.expired]
    assert cancelled == [job_id(n) for n in range(5_000)]
    [job] = (await store.claim(Claim("w1", ("q",), 1, LEASE), T0 + SECOND)).jobs
    assert job.id == job_id(5_000)


@pytest.mark.parametrize(("max_bytes", "jobs"), [(1, 1), (MIB, 16), (4 * MIB, 64)])
async def test_a_claim_reads_few_jobs_beyond_those_that_there_is_room_for(
    store: RedisBackend, max_bytes: int, jobs: int
) -> None:
    await fill(store, 300, 64 * KIB)
    with commands() as asked:
        claimed = await store.claim(Claim("w1", ("q",), 300, LEASE, max_bytes=max_bytes), T0)
    assert len(claimed.jobs) == jobs
    assert asked.read("j") <= jobs + 8


async def test_small_jobs_in_front_do_not_make_a_claim_read_the_large_ones_behind(store: RedisBackend) -> None:
    await fill(store, 8)
    await fill(store, 292, 64 * KIB, first=8)
    with commands() as asked:
        claimed = await store.claim(Claim("w1", ("q",), 300, LEASE, max_bytes=MIB), T0)
    assert len(claimed.jobs) == 8 + 16
    assert asked.read("j") <= 100


async def test_a_claim_that_passes_over_jobs_looks_at_a_bounded_number(store: RedisBackend) -> None:
    await fill(store, 5_000)
    await lease(store, 5_000, lease_for=1)
    for _ in range(5):
        assert len(await store.reap(Reap(), T0 + 1)) == 1_000
    for limit in (1, 100, 1_000):
        with commands() as asked:
            claimed = await store.claim(Claim("w1", ("q",), limit, LEASE, lost_below=1), T0 + 2)
        assert (claimed.jobs, claimed.passed_over) == ([], True)
        assert asked.read("s") <= 3_000
        assert asked.read("j") == 0
        assert asked.count() < 50


async def test_a_claim_wakes_few_of_very_many_tenants_and_all_of_some(store: RedisBackend) -> None:
    assert await store.policies.save(Policy(queue="q", tenant_batch=10), T0)
    await store.insert([row(number, tenant=f"t{number}") for number in range(1_000)], T0)
    await store.insert([row(number, queue="p", tenant=f"t{number}") for number in range(1_000, 1_090)], T0)
    assert await store.policies.save(Policy(queue="p", tenant_batch=10), T0)
    for queue, fewest, most in (("q", 1, 16), ("p", 90, 90)):
        with commands() as asked:
            assert len((await store.claim(Claim("w1", (queue,), 1, LEASE), T0)).jobs) == 1
        woken = [words for words in asked.all if words[0] == "ZREM" and f"{BASE}:B:" in words[1]]
        assert fewest <= sum(len(words) - 2 for words in woken) <= most


# -- answers


async def test_a_reap_sends_no_cells(store: RedisBackend) -> None:
    await fill(store, 50, 64 * KIB)
    await lease(store, 25)
    await fill(store, 50, 64 * KIB, first=50, expires=1)
    with sent() as said:
        assert len(await store.reap(Reap(), T0 + LEASE)) == 75
    assert said[0] < 64 * KIB


async def test_a_claim_sends_no_cells_of_what_has_expired(store: RedisBackend) -> None:
    await fill(store, 50, 64 * KIB, expires=1)
    with sent() as said:
        assert len((await store.claim(Claim("w1", ("q",), 1, LEASE), T0 + SECOND)).expired) == 50
    assert said[0] < 64 * KIB


async def test_records_come_without_what_nobody_wants(store: RedisBackend) -> None:
    await fill(store, 50, 64 * KIB)
    claimed = await store.claim(Claim("w1", ("q",), 10, LEASE), T0)
    blob = bytes(64 * KIB)
    batch = [settle(job, error=blob, result=blob, result_ttl=HOUR, cells={"parameters": blob}) for job in claimed.jobs]
    assert await store.finish(batch, T0) == [JobState.COMPLETED] * 10
    with sent() as said:
        assert None not in await store.fetch([job_id(n) for n in range(50)], at=T0)
        assert len((await store.scan(Selector(), None, 50, T0)).records) == 50
    assert said[0] < 64 * KIB
    for want in ("error", "result", "parameters"):
        with sent() as said:
            [record] = await store.fetch([job_id(0)], frozenset({want}), T0)
        assert record is not None
        assert blob in (record.error, record.result, record.cells.get("parameters"))
        assert 64 * KIB < said[0] < 6 * 64 * KIB


async def test_running_jobs_are_found_among_the_leases(store: RedisBackend) -> None:
    await fill(store, 20_000)
    claimed = (await store.claim(Claim("w1", ("q",), 3, LEASE), T0)).jobs
    with commands() as asked:
        page = await store.scan(Selector(states=frozenset({JobState.RUNNING})), None, 2, T0)
    assert ([record.id for record in page.records], page.after) == ([job_id(2), job_id(1)], job_id(1).hex())
    assert asked.count() < 50
    rest = await store.scan(Selector(states=frozenset({JobState.RUNNING}), queue="q"), page.after, 2, T0)
    assert ([record.id for record in rest.records], rest.after) == ([claimed[0].id], None)
    nobody = Selector(states=frozenset({JobState.RUNNING}), tenant="somebody")
    assert (await store.scan(nobody, None, 2, T0)).records == []


async def test_the_worker_of_many_jobs_is_read_once(store: RedisBackend) -> None:
    """The names of its queues may be many."""
    await store.policies.save(Policy(queue="q", tenant_batch=1_000), T0)
    await store.insert([row(n, tenant=f"t{n % 10}") for n in range(500)], T0)
    names = tuple(f"queue-{n}" for n in range(10_000))
    await store.renew(Beat("w1", "wörker", names, LEASE), T0)
    await lease(store, 500)
    with commands() as asked:
        found = await store.fetch([job_id(n) for n in range(500)], at=T0)
        page = await store.scan(Selector(), None, 500, T0)
        tenants = await store.policies.tenants("q", at=T0)
    assert {record and record.worker for record in (*found, *page.records)} == {"wörker"}
    assert {tenant.workers for tenant in tenants} == {("wörker",)}
    assert [script.read("W") for script in asked.calls()] == [1, 1, 1]


async def test_running_jobs_come_in_their_order_whatever_the_order_of_very_many_leases(store: RedisBackend) -> None:
    numbers = [n * 7_919 % 4_001 for n in range(1, 4_001)]
    for first in range(0, 4_000, 50):
        await store.insert([row(n) for n in numbers[first : first + 50]], T0)
        await lease(store, 50, at=T0 + first)
    running = Selector(states=frozenset({JobState.RUNNING}))
    found: list[JobId] = []
    after = None
    while not found or after is not None:
        with commands() as asked:
            page = await store.scan(running, after, 100, T0)
        found += [record.id for record in page.records]
        after = page.after
        assert asked.read("s") <= 200
        assert len(page.records) == 100
    assert found == [job_id(n) for n in range(4_000, 0, -1)]
    nobody = Selector(states=frozenset({JobState.RUNNING}), tenant="nobody")
    with commands() as asked:
        assert await scanned(store, nobody) == ([], 3)
    assert max(script.read("s") for script in asked.calls()) <= 2_000


async def test_sections_that_a_claim_does_not_want_stay_on_the_server(store: RedisBackend) -> None:
    cells = {"parameters": b"p" * KIB, "vm_state": bytes(64 * KIB)}
    await store.insert([row(n, cells=cells, headers=b"h") for n in range(10)], T0)
    taken = (await store.claim(Claim("w1", ("q",), 5, LEASE), T0)).jobs
    patch: dict[str, bytes | None] = {"blob": bytes(64 * KIB)}
    await store.finish([settle(job, JobState.AVAILABLE, cells=patch) for job in taken], T0)
    with sent() as said:
        claimed = await store.claim(Claim("w1", ("q",), 10, LEASE, frozenset({"parameters"})), T0)
    assert [job.cells for job in claimed.jobs] == [{"parameters": b"p" * KIB}] * 10
    assert sorted(len(job.left) for job in claimed.jobs) == [1] * 5 + [2] * 5
    assert said[0] < 16 * KIB
    with sent() as said:
        [record] = await store.fetch([job_id(0)], frozenset({"parameters"}), T0)
    assert record is not None
    assert record.cells == {"parameters": b"p" * KIB}
    assert said[0] < 4 * KIB


# -- many jobs at once

LARGE = 30
PER_CALL = 9
"""Jobs of a MiB that one call reads: until it has read more than 8."""


@pytest_asyncio.fixture
async def large(store: RedisBackend) -> RedisBackend:
    """The store with some jobs of a MiB."""
    await fill(store, LARGE, MIB)
    return store


async def scanned(store: RedisBackend, sel: Selector) -> tuple[list[JobId], int]:
    """What a scan finds, and in how many pages."""
    found: list[JobId] = []
    after, pages = None, 0
    while pages == 0 or after is not None:
        page = await store.scan(sel, after, 100, T0)
        found += [record.id for record in page.records]
        after, pages = page.after, pages + 1
    return found, pages


async def test_a_scan_stops_when_it_has_read_much_and_goes_on_with_the_next_page(large: RedisBackend) -> None:
    with commands() as asked:
        assert await scanned(large, Selector(task="none such")) == ([], 4)
    assert [call.read("j") <= PER_CALL for call in asked.calls()] == [True] * 4
    assert asked.read("j") == LARGE
    with commands() as asked:
        assert await scanned(large, Selector()) == ([job_id(n) for n in reversed(range(LARGE))], 4)
    assert [call.read("j") <= PER_CALL for call in asked.calls()] == [True] * 4


async def test_an_alter_stops_when_it_has_read_much_and_goes_on_by_itself(large: RedisBackend) -> None:
    with commands() as asked:
        assert await large.alter(Selector(task="none such"), Cancel(), T0) == []
    assert [call.read("j") <= PER_CALL for call in asked.calls()] == [True] * 4
    assert asked.read("j") == LARGE
    with commands() as asked:
        answers = await large.alter(Selector(task="t"), Cancel(), T0)
    assert [answer.id for answer in answers] == [job_id(n) for n in range(LARGE)]
    assert len(asked.calls()) == 4


# -- upkeep


async def done(store: RedisBackend, first: int, count: int, *, ttl: int, at: int) -> None:
    """Jobs that have completed, with a result that is held for so long."""
    await fill(store, count, first=first, at=at)
    for _ in range(0, count, 1_000):
        claimed = await store.claim(Claim("w1", ("q",), 1_000, LEASE), at)
        await store.finish([settle(job, result=b"r", result_ttl=ttl) for job in claimed.jobs], at)


AGED = SweepClause(target=SweepTarget.COMPLETED, older_than=SECOND, limit=10)


async def test_what_is_swept_goes_from_each_table_at_once(store: RedisBackend) -> None:
    """One command for all jobs, as each command is in the server's log."""
    await done(store, 0, 100, ttl=0, at=T0)
    with commands() as asked:
        swept = await store.sweep(SweepClause(target=SweepTarget.COMPLETED, max_count=0), T0 + 1)
    assert swept.removed == 100
    assert asked.count("HDEL") < 10
    for table in "jsewhc":
        assert not server().call("EXISTS", f"{BASE}:{table}")


async def test_a_sweep_by_age_gets_past_results_that_are_held(store: RedisBackend) -> None:
    """In bounded steps, and the next one does not walk over them again."""
    await done(store, 0, 3_000, ttl=HOUR, at=T0)
    await done(store, 3_000, 25, ttl=0, at=T0 + 1)
    removed, calls, reads = 0, 0, []
    more = True
    while more:
        with commands() as asked:
            swept = await store.sweep(AGED, T0 + 2 * SECOND)
        removed, calls, more = removed + swept.removed, calls + 1, swept.more
        reads.append(asked.read("s"))
        assert calls < 20
    assert removed == 25
    assert max(reads) <= 1_500
    assert sum(reads) < 5_000
    with commands() as asked:
        assert (await store.sweep(AGED, T0 + 3 * SECOND)).removed == 0
    assert asked.read("s") == 0
    await done(store, 4_000, 5, ttl=0, at=T0 + 3 * SECOND)
    with commands() as asked:
        assert (await store.sweep(AGED, T0 + 5 * SECOND)).removed == 5
    assert asked.read("s") < 20


@pytest.mark.parametrize("how", ["their time is over", "they are let go"])
async def test_a_sweep_by_age_comes_back_to_results_that_were_held(store: RedisBackend, how: str) -> None:
    await done(store, 0, 5, ttl=HOUR, at=T0)
    assert (await store.sweep(AGED, T0 + 2 * SECOND)).removed == 0
    later = T0 + 2 * SECOND
    if how == "they are let go":
        await store.alter(Selector(ids=[job_id(n) for n in range(5)]), Hold(0), later)
    else:
        later = T0 + HOUR
    assert (await store.sweep(AGED, later)).removed == 5


async def test_a_sweep_by_age_passes_over_none_of_those_that_ended_at_one_instant(store: RedisBackend) -> None:
    """Held ones and others by turns, as one batch settles them."""
    await fill(store, 60)
    claimed = await store.claim(Claim("w1", ("q",), 60, LEASE), T0)
    await store.finish([settle(job, result_ttl=n % 2 * HOUR) for n, job in enumerate(claimed.jobs)], T0)
    removed = [await store.sweep(AGED, T0 + 2 * SECOND) for _ in range(4)]
    assert [swept.removed for swept in removed] == [10, 10, 10, 0]
    assert [swept.more for swept in removed] == [True, True, False, False]


async def test_a_sweep_by_age_finds_what_ended_when_the_clock_had_stepped_back(store: RedisBackend) -> None:
    """Such a job stays longer by the step, not as long as results are held that ended after it."""
    await done(store, 0, 5, ttl=HOUR, at=T0 + 2 * SECOND)
    assert (await store.sweep(AGED, T0 + 4 * SECOND)).removed == 0
    await done(store, 5, 5, ttl=0, at=T0 + SECOND)
    assert (await store.sweep(AGED, T0 + 5 * SECOND)).removed == 5


async def test_a_reap_of_one_of_many_leases_reads_that_one(store: RedisBackend) -> None:
    await fill(store, 5_000)
    await lease(store, 5_000)
    with commands() as asked:
        [job] = await store.reap(Reap(limit=1), T0 + HOUR)
    assert job.lost == 1
    assert asked.read("s") <= 10
    assert asked.count() < 100


# -- schedules

DUE = 10


async def keep_schedules(store: RedisBackend, count: int, *, due: int) -> None:
    """Save schedules, of which the first ``due`` must be looked at."""
    for first in range(0, count, 1_000):
        batch = [
            Save(schedule(n, look_at=T0 if n < due else T0 + HOUR + n, bucket=n % BUCKETS, plan_priority=n % 2), 0)
            for n in range(first, min(count, first + 1_000))
        ]
        assert all(await store.ticks.save(batch, T0))


async def cost_of_planning(store: RedisBackend, count: int, look: Look) -> tuple[int, int]:
    """Commands that it takes to find what is due of so many, and to plan it."""
    server().call("FLUSHALL")
    await keep_schedules(store, count, due=DUE)
    with commands() as looked:
        found = (await store.ticks.due(look, T0)).schedules
    plans = [moved(one, fires(T0, one.uid[-1]), slot=T0 + 2 * HOUR) for one in found]
    with commands() as planned:
        assert await store.ticks.plan(plans, T0) == [[TickOutcome.FIRED]] * len(found)
    return looked.count(), planned.count()


@pytest.mark.parametrize("look", [Look(), Look(100, 1, 3)], ids=["all", "a share"])
async def test_what_a_look_and_a_plan_cost_does_not_depend_on_how_many_schedules_there_are(
    store: RedisBackend, look: Look
) -> None:
    await cost_of_planning(store, 10, look)
    few = await cost_of_planning(store, 1_000, look)
    many = await cost_of_planning(store, 20_000, look)
    assert max(*few, *many) < 25 * DUE
    assert [abs(a - b) <= DUE for a, b in zip(few, many, strict=True)] == [True, True]


async def test_when_all_are_due_at_once_a_look_reads_those_that_it_answers_with(store: RedisBackend) -> None:
    await keep_schedules(store, 20_000, due=20_000)
    for look in (Look(100), Look(100, 3, 7)):
        with commands() as asked:
            found = (await store.ticks.due(look, T0)).schedules
        numbers = [n for n in range(0, 20_000, 2) if n % BUCKETS % look.shares == look.share]
        assert [one.name for one in found] == [f"s{n:06d}" for n in numbers[:100]]
        assert asked.read("Sd") == 100
        assert asked.count() < 600


async def test_ticks_are_swept_without_a_look_at_those_that_stay(store: RedisBackend) -> None:
    await keep_schedules(store, 1, due=1)
    for first in range(0, 5_000, 1_000):
        ticks = [NewTick(T0 + n, T0) for n in range(first, first + 1_000)]
        await store.ticks.plan([Plan("s000000", uid(0), None, ticks)], T0 + first)
    with commands() as asked:
        swept = await store.sweep(SweepClause(target=SweepTarget.TICKS, older_than=HOUR, limit=10), T0 + HOUR)
    assert (swept.removed, swept.more) == (10, True)
    assert asked.count() < 60


@pytest.mark.parametrize("rules", [False, True])
async def test_a_single_job_is_one_call_also_where_queues_have_rules(store: RedisBackend, rules: bool) -> None:
    if rules:
        await store.policies.save(Policy(queue="q", depth=1_000))
    await store.insert([row(0)], T0)
    with commands() as sent:
        for n in range(1, 11):
            await store.insert([row(n)], T0)
    assert 10 <= len(sent.calls()) < 20, "on a slow machine the short way is tried again"
    if not rules:
        assert {words[1] for words in sent.all if words[0] == "EVALSHA"} == {SCRIPTS["insert_one"].digest}
