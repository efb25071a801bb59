"""A process that uses the store: it enqueues, works, operates; and it may die on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from headrace.seam.policy import Policy
from headrace.seam.protocol import Backend, PolicyStore
from headrace.seam.records import (
    Beat,
    Change,
    Claim,
    Inserted,
    InsertStatus,
    JobId,
    Leased,
    Reap,
    Reaped,
    Row,
    Selector,
    Settlement,
)
from headrace.testing.crashpoints.ledger import Event, Ledger
from headrace.types import JobState

T0 = 1_800_000_000_000_000
SECOND = 1_000_000
LEASE = 30 * SECOND
HOUR = 3_600 * SECOND
QUEUES = ("q", "other")

Handler = Callable[[Leased, bool], dict[str, Any]]
"""What a job's run leads to: the fields of its settlement. The flag says whether a known fault has been repaired."""


def job_id(number: int) -> JobId:
    """A valid id that sorts by its number."""
    return bytes.fromhex(f"0190{number:08x}70008000000000000000")


def row(number: int, task: str, **changes: Any) -> Row:
    """A job, due at once. No two jobs that may both exist share a task, so that a task tells which job it is."""
    return Row(id=job_id(number), **({"queue": "q", "task": task, "cells": {"parameters": b"{}"}} | changes))


def done(job: Leased, repaired: bool) -> dict[str, Any]:
    """The usual handler: a result that is kept for a day."""
    return {"state": JobState.COMPLETED, "result": job.task.encode(), "result_ttl": 24 * HOUR}


class Actor:
    """One process with one holder; every call carries its own clock's instant."""

    def __init__(self, store: Backend, ledger: Ledger, holder: str, handler: Handler, now: int = T0) -> None:
        self.store = store
        self.ledger = ledger
        self.holder = holder
        self.handler = handler
        self.now = now
        self.repaired = False

    @property
    def policies(self) -> PolicyStore:
        """The policies of the store, which must have them."""
        assert self.store.policies is not None
        return self.store.policies

    async def insert(self, *rows: Row) -> list[Inserted]:
        """Enqueue, and note the acknowledgement."""
        answers = await self.store.insert(rows, self.now)
        for answer in answers:
            if answer.status is not InsertStatus.FULL:
                self.ledger.write(Event("acked", answer.id))
        return answers

    async def rule(self, rules: Policy) -> None:
        """Give the queue these rules, if it has others."""
        known = next((one.policy for one in await self.policies.find([rules.queue], self.now)), rules)
        if known.version == 0 or replace(known, version=0) != rules:
            assert await self.policies.save(replace(rules, version=known.version), self.now)

    def wish(self, limit: int) -> Claim:
        """A claim from all queues."""
        return Claim(self.holder, QUEUES, limit, LEASE)

    async def claim(self, limit: int = 10) -> list[Leased]:
        """Take work; its handlers start."""
        return self.start((await self.store.claim(self.wish(limit), self.now)).jobs)

    def start(self, jobs: list[Leased]) -> list[Leased]:
        """The handlers of these jobs start."""
        for job in jobs:
            self.ledger.write(Event("ran", job.id, job.epoch, self.holder))
        return jobs

    def settlement(self, job: Leased) -> Settlement:
        """What the handler makes of the job."""
        return Settlement(job.id, job.epoch, self.holder, **self.handler(job, self.repaired))

    async def finish(self, jobs: Sequence[Leased]) -> list[JobState | None]:
        """The handlers end."""
        return await self.store.finish([self.settlement(job) for job in jobs], self.now)

    async def work(self, limit: int = 10) -> int:
        """Claim and finish; return how many jobs."""
        jobs = await self.claim(limit)
        if jobs:
            await self.finish(jobs)
        return len(jobs)

    async def renew(self, jobs: Sequence[Leased]) -> Sequence[JobId]:
        """Beat for these leases; the jobs that should stop."""
        leases = [(job.id, job.epoch) for job in jobs]
        return (await self.store.renew(Beat(self.holder, "pod", QUEUES, LEASE, leases), self.now)).cancels

    async def reap(self) -> list[Reaped]:
        """Take back what vanished holders left."""
        return await self.store.reap(Reap(max_lost=2), self.now)

    async def alter(self, change: Change, *numbers: int) -> None:
        """Change jobs by id."""
        await self.store.alter(Selector(ids=[job_id(number) for number in numbers]), change, self.now)
