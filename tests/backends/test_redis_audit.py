"""Whatever is asked of a Valkey store, in whatever order, its indexes stay true to its jobs and schedules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

from headrace.backends.redis import RedisBackend
from headrace.seam.policy import STORE, Policy, QueuePause, Rate, TenantLimit
from headrace.seam.records import (
    Beat,
    Cancel,
    Change,
    Claim,
    Claimed,
    Delete,
    Hold,
    JobId,
    JobKey,
    Move,
    Pause,
    Reap,
    Reprioritise,
    Requeue,
    Reschedule,
    Resume,
    Row,
    Selector,
    Settlement,
    SweepClause,
    SweepTarget,
    Watch,
)
from headrace.seam.ticks import Drop, Look, NewTick, Overlap, Plan, Save, Schedule, ScheduleSelector, TickNote
from headrace.testing.conformance.base import MINUTE, SECOND, T0, job_id, row
from headrace.testing.conformance.ticks import schedule, uid
from headrace.types import JobState
from tests.backends.redis_audit import Audit
from tests.valkey import every_operation, server, stores

STEPS = 200
JOB = job_id(1)
QUEUES = ("a", "a:b/{c}", "{x}", "1")
KEYS = ("k", "1:2", "", "a:b/{c}")
TENANTS = ("", "t", "a:b/{c}")
TASKS = ("t", "task")
GROUPS = (None, None, None, "", "g", "a:b/{c}")
NAMES = ("s", "1:2", "a:b/{c}", "é")
HOLDERS = ("h1", "a:b/{c}")
STATES = (
    JobState.AVAILABLE, JobState.PAUSED, JobState.COMPLETED, JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED,
)  # fmt: skip

CELLS: tuple[dict[str, bytes | None] | None, ...] = (
    None, None, {"blob": None}, {"parameters": b"zz", "metadata": b""},
)  # fmt: skip


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[RedisBackend]:
    backend = stores.connect(tmp_path)
    await backend.open()
    yield backend
    await backend.close()


def problems() -> list[str]:
    return Audit(server().call).problems()


class Anybody:
    """Does with a store whatever comes to mind."""

    def __init__(self, store: RedisBackend, chance: Random) -> None:
        self._store = store
        self._chance = chance
        self._now = T0
        self._known: list[JobId] = []
        self._leased: dict[JobId, tuple[int, str]] = {}
        """The epoch and the holder of each."""

    async def step(self) -> str:
        """One operation; which."""
        self._now += self._chance.choice([0, 1, SECOND // 2, 2 * SECOND, -SECOND])
        steps = (
            self.insert, self.insert, self.claim, self.claim, self.finish, self.finish_and_claim, self.reap, self.renew,
            self.alter, self.alter, self.alter, self.sweep, self.save, self.plan, self.plan, self.note, self.rule,
            self.limit, self.pause,
        )  # fmt: skip
        step = self._chance.choice(steps)
        await step()
        return step.__name__

    def _row(self) -> Row:
        choice = self._chance.choice
        made = Row(
            self._chance.randbytes(16),
            choice(QUEUES),
            choice(TASKS),
            choice([{}, {"blob": b""}, {"parameters": b"x" * self._chance.randint(0, 9), "vm_state": b"y"}]),
            tenant=choice(TENANTS),
            key=choice((None, None, *KEYS)),
            priority=choice((0, 0, -3, 7)),
            delay=choice((0, 0, 5 * SECOND)),
            run_at=choice((None, None, None, T0 - SECOND)),
            expires=choice((None, None, 3 * SECOND)),
            headers=choice((None, b"", b"h")),
            reply_to=choice((None, "in1", "a:b/{c}")),
            hold_failed=choice((True, False, False)),
            group=choice(GROUPS),
        )
        self._known.append(made.id)
        return made

    async def insert(self) -> None:
        rows = [self._row() for _ in range(self._chance.randint(1, 5))]
        await self._store.insert(rows + self._chance.sample(rows, 1), self._now)

    def _wish(self, holder: str) -> Claim:
        choice = self._chance.choice
        queues = tuple(self._chance.sample(QUEUES, self._chance.randint(1, len(QUEUES))))
        return Claim(
            holder,
            queues,
            self._chance.randint(1, 4),
            choice((SECOND, MINUTE)),
            lost_below=choice((None, 1)),
            max_bytes=choice((4 << 20, 300)),
        )

    def _got(self, holder: str, claimed: Claimed) -> None:
        self._leased |= {job.id: (job.epoch, holder) for job in claimed.jobs}

    async def claim(self) -> None:
        holder = self._chance.choice(HOLDERS)
        self._got(holder, await self._store.claim(self._wish(holder), self._now))

    def _settlements(self) -> list[Settlement]:
        """Of some leases; a few are somebody else's by now, and a few are not given up."""
        ids = self._chance.sample(list(self._leased), min(len(self._leased), self._chance.randint(1, 4)))
        made = [self._settlement(name, *self._leased[name]) for name in ids]
        for settlement in made:
            if self._chance.randrange(4):
                del self._leased[settlement.id]
        return made

    def _settlement(self, name: JobId, epoch: int, holder: str) -> Settlement:
        choice = self._chance.choice
        return Settlement(
            name,
            epoch + choice((0,) * 9 + (1,)),
            holder,
            choice(STATES),
            delay=choice((0, None, 2 * SECOND)),
            failed_attempt=choice((True, False, False)),
            keep_lost=choice((True, False, False)),
            queue=choice((None, None, *QUEUES)),
            priority=choice((None, None, 0, 5)),
            cells=choice(CELLS),
            error=choice((None, b"", b"err")),
            reason=choice(("", "why")),
            result=choice((None, b"", b"res")),
            result_ttl=choice((0, 4 * SECOND)),
            keep=choice((True, True, True, True, False)),
            spawn=[self._row() for _ in range(choice((0, 0, 0, 2)))],
        )

    async def finish(self) -> None:
        await self._store.finish(self._settlements(), self._now)

    async def finish_and_claim(self) -> None:
        holder = self._chance.choice(HOLDERS)
        _, claimed = await self._store.finish_and_claim(self._settlements(), self._wish(holder), self._now)
        self._got(holder, claimed)

    async def reap(self) -> None:
        choice = self._chance.choice
        req = Reap(limit=choice((1, 3, 100)), spread=choice((0, SECOND)))
        await self._store.reap(req, self._now)

    async def renew(self) -> None:
        choice = self._chance.choice
        some = list(self._leased.items())[:3]
        leases = [(name, epoch) for name, (epoch, _) in some]
        beat = Beat(
            choice(HOLDERS), "w", QUEUES, SECOND, leases, ttl=choice((SECOND, MINUTE)), leaving=choice((0, 0, 1)) > 0
        )
        await self._store.renew(beat, self._now)

    async def alter(self) -> None:
        choice = self._chance.choice
        changes: Sequence[Change] = (
            Cancel(), Pause(), Resume(), Requeue(), Move(choice((*QUEUES, "new"))), Reprioritise(choice((0, 9, -3))),
            Reschedule(choice((0, 5 * SECOND))), Watch("in3"), Hold(choice((0, 9 * SECOND))), Delete(),
        )  # fmt: skip
        change = choice(changes)
        selectors = [Selector(queue=choice(QUEUES), limit=2)]
        if self._known:
            selectors += [
                Selector(ids=self._chance.sample(self._known, min(3, len(self._known)))),
                Selector(keys=[JobKey(choice(QUEUES), choice(KEYS))]),
                Selector(tenant=choice(TENANTS), limit=3, above=choice(self._known)),
                Selector(task="task", states=frozenset({choice(STATES)}), older_than=SECOND, limit=5),
            ]
        await self._store.alter(choice(selectors), change, self._now)

    async def sweep(self) -> None:
        choice = self._chance.choice
        clause = SweepClause(
            target=choice(list(SweepTarget)),
            older_than=choice((None, 3 * SECOND)),
            max_count=choice((None, 5)),
            max_bytes=choice((None, 3_000)),
            limit=choice((2, 1_000)),
            dry_run=choice((True, False, False, False)),
        )
        await self._store.sweep(clause, self._now)

    async def rule(self) -> None:
        choice = self._chance.choice
        queue = choice((*QUEUES[:3], STORE))
        known = await self._store.policies.find([queue], self._now)
        rates = (None, None, Rate(SECOND), Rate(SECOND, 3))
        policy = Policy(
            queue=queue,
            version=known[0].policy.version if known else 0,
            running=choice((None, None, 3)),
            rate=choice(rates),
            tenant_running=choice((None, None, 0, 1)),
            tenant_rate=choice(rates),
            task_rates=choice(({}, {"task": Rate(SECOND, 2)})),
            tenant_workers=choice((None, 1, 2)),
            tenant_batch=choice((1, 10)),
            ageing=choice((None, SECOND)),
            group_running=choice((1, 1, 2, 5)),
            depth=choice((None, 20)),
        )
        assert await self._store.policies.save(policy, self._now)

    async def limit(self) -> None:
        choice = self._chance.choice
        limit = TenantLimit(choice(QUEUES[:3]), choice(TENANTS), choice((None, 1)), choice((None, Rate(SECOND))))
        await self._store.policies.limit(limit, self._now)

    async def pause(self) -> None:
        choice = self._chance.choice
        queue = choice(QUEUES[:3])
        whom = choice(((None, None), (choice(TENANTS), None), (None, "task")))
        pause = QueuePause(queue, *whom, choice((True, False, False)), choice((None, SECOND)))
        await self._store.policies.pause(pause, self._now)

    async def save(self) -> None:
        choice = self._chance.choice
        changes: list[Save | Drop] = []
        for name in self._chance.sample(NAMES, 2):
            [known] = await self._store.ticks.find(ScheduleSelector(names=[name])) or [None]
            expect = choice((0, 1)) if known is None else known.version
            wanted = Schedule(
                name=name,
                uid=self._chance.randbytes(16) if known is None else known.uid,
                queue=choice(QUEUES),
                definition=choice((b"", b"def")),
                tenant=choice(TENANTS),
                plan_priority=choice((0, 0, -3)),
                bucket=choice((0, 1, 1023)),
                enabled=choice((True, True, False)),
                slot=choice((None, T0)),
                look_at=choice((None, self._now, self._now + SECOND)),
                last_job=choice((None, *self._known[-3:])),
            )
            changes.append(choice((Save(wanted, expect), Save(wanted, expect), Drop(name, expect))))
        await self._store.ticks.save(changes, self._now)

    async def plan(self) -> None:
        """What is due, and something out of turn."""
        choice = self._chance.choice
        looked = await self._store.ticks.due(Look(choice((1, 3)), 0, choice((1, 2))), self._now)
        plans: list[Plan] = []
        for one in looked.schedules:
            ticks = [
                NewTick(self._now + n, self._now, choice((None, self._row(), self._row())), overlap=choice([*Overlap]))
                for n in range(choice((0, 1, 3)))
            ]
            look_at = choice((None, self._now + SECOND))
            version = choice((None, one.version, one.version, one.version, one.version + 1))
            plans.append(Plan(one.name, one.uid, version, ticks, choice((None, T0)), look_at))
        await self._store.ticks.plan(plans, self._now)

    async def note(self) -> None:
        for one in await self._store.ticks.find(ScheduleSelector()):
            notes = [TickNote(one.uid, tick.slot, "failed", 1, 2) for tick in await self._store.ticks.history(one.uid)]
            await self._store.ticks.note(notes, self._now)


@pytest.mark.parametrize("seed", range(5))
async def test_the_indexes_are_true_to_the_jobs_whatever_is_done(seed: int, store: RedisBackend) -> None:
    """Under names that look like parts of keys, and with a clock that steps back."""
    anybody = Anybody(store, Random(seed))
    done: list[str] = []
    for number in range(STEPS):
        done.append(await anybody.step())
        if number % 5 == 4:
            assert problems() == [], done[-5:]


async def test_the_indexes_are_true_to_the_jobs_after_every_operation(store: RedisBackend) -> None:
    await every_operation(store)
    assert problems() == []


@pytest.mark.parametrize(
    "damage",
    [
        ("HDEL", "j", JOB), ("HSET", "s", JOB, bytes(61)), ("ZREM", "a", JOB), ("SREM", "u", "t"), ("ZREM", "u:t", JOB),
        ("ZREM", "r:1:0", JOB), ("ZREM", "p:1", 5), ("ZREM", "y", JOB), ("ZADD", "l", 1, JOB), ("SADD", "x:h", JOB),
        ("ZADD", "d:3", 1, JOB), ("HSET", "h", JOB, "r"), ("ZADD", "hx", 1, JOB), ("HSET", "e", JOB, "longer"),
        ("HSET", "c", JOB, bytes(16)), ("HDEL", "k", "1:k"), ("HSET", "w", job_id(9), b"\x91\xa2me"),
        ("HDEL", "q", "q"), ("HDEL", "qn", 1), ("SET", "qi", 0), ("ZADD", "z", 1, 7), ("HINCRBY", "n", "1:0", 1),
        ("HINCRBY", "b", 3, 1), ("HSET", "W", "h", "w"), ("ZADD", "X", 1, "h"), ("PERSIST", "g:q"), ("SET", "new", "x"),
        ("HDEL", "S", "s000001"), ("HDEL", "Sd", "s000001"), ("ZREM", "Sn", "s000001"), ("ZREM", "Sl:0:0", "s000001"),
        ("ZREM", "Sh:0", "s000001"), ("ZADD", "Sh:0", 1, "s000001"), ("ZREM", "Sr", 0),
        ("ZREM", "T", uid(1) + T0.to_bytes(8, "big")),
        ("ZREMRANGEBYRANK", b"T:" + uid(1), 0, 0),
        ("HSET", "n", "w", 9), ("HSET", "o", 7, 0), ("ZREM", "i", "1:g"), ("ZREM", "i:1:g", job_id(3)),
        ("ZADD", "i:1:g", 1, job_id(2)), ("ZREM", "ic:1:g", job_id(2)), ("ZADD", "ic:1:g", 1, job_id(2)),
        ("HDEL", "M", 1), ("ZREMRANGEBYRANK", "V:2", 0, 0), ("ZREMRANGEBYRANK", "A:2", 0, 0), ("ZADD", "B:2", 1, 1),
        ("ZADD", "Mi", 1, 1), ("ZREM", "G:1:0:t", job_id(6)), ("ZADD", "r:1:0", T0, job_id(6)),
        ("ZREM", "pq", 1), ("ZADD", "pq", -1, 1), ("ZREM", "fq", 1), ("ZADD", "fq", 1, 1), ("DEL", "f:1"),
        ("ZADD", "Gp:1", 0, "x"), ("DEL", "Gp:1"), ("DEL", "Gf:1"), ("DEL", "F:2"), ("DEL", "H:2"),
        ("HSET", "s", job_id(5), bytes(61)), ("ZADD", "O:2:h", 1, "x"), ("ZADD", "oz:3", 1, "t"),
    ],
    ids=lambda damage: f"{damage[0]} {damage[1]!r}",
)  # fmt: skip
async def test_an_index_that_is_not_true_is_noticed(
    damage: tuple[str, str | bytes, *tuple[str | int | bytes, ...]], store: RedisBackend
) -> None:
    await store.insert([row(1, tenant="t", key="k", reply_to="me", expires=SECOND)], T0)
    await store.ticks.save([Save(schedule(1), 0)], T0)
    await store.ticks.plan([Plan("s000001", uid(1), 1, [NewTick(T0, T0)], T0, T0)], T0)
    await store.insert([*(row(n, group="g") for n in (2, 3)), row(4, priority=5)], T0)
    await store.policies.save(Policy(queue="r", tenant_running=3, tenant_batch=1), T0)
    await store.insert([row(n, queue="r") for n in (5, 6, 7)], T0)
    await store.insert([row(n, queue=queue, delay=SECOND) for n, queue in ((18, "q"), (19, "r"))], T0)
    await store.claim(Claim("h", ("r",), 1, MINUTE), T0)
    assert problems() == []
    command, name, *rest = damage
    server().call(command, b"headrace{jobs}:" + (name if isinstance(name, bytes) else name.encode()), *rest)
    assert problems()
