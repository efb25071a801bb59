"""Histories made by hand: what is told of the store is true unless a lie is told instead."""

from __future__ import annotations

from collections.abc import Awaitable
from operator import attrgetter
from typing import Any, TypeVar

from msgspec.structs import replace

from headrace.backends.memory import MemoryBackend
from headrace.schedules.calendar import EveryRule
from headrace.schedules.plan import Definition, Template, make_plan, unpack
from headrace.seam.policy import Policy, QueuePause
from headrace.seam.records import (
    Beat,
    Cancel,
    Change,
    Claim,
    Claimed,
    JobId,
    Leased,
    Reap,
    Row,
    Selector,
    Settlement,
    SweepClause,
    SweepTarget,
    Swept,
)
from headrace.seam.ticks import Look, Looked, Plan, Save, Schedule
from headrace.testing.sim.checker import check
from headrace.testing.sim.history import History, Run, Snapshot, Wait
from headrace.testing.sim.observer import Audit, snapshot
from headrace.testing.sim.verdict import Verdict
from headrace.types import JobState

T = TypeVar("T")
SECOND = 1_000_000
LEASE = 3 * SECOND
TRUE: Any = object()
UID = b"a schedule's uid"


def done(coroutine: Awaitable[T]) -> T:
    """The value of a coroutine that never waits."""
    try:
        coroutine.send(None)  # type: ignore[attr-defined]
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise AssertionError("it waits")


def job(number: int) -> JobId:
    return number.to_bytes(16, "big")


def row(number: int, **more: Any) -> Row:
    return Row(job(number), **({"queue": "q", "task": "t", "cells": {"parameters": b"p"}} | more))


def leased(number: int, at: int, **more: Any) -> Leased:
    """Job ``number`` as a first claim would bring it, if it was inserted and due at that instant."""
    return Leased(job(number), "q", "t", {"parameters": b"p"}, 1, run_at=at, enqueued_at=at, **more)


class Tale:
    """Each method is one call or one event, a microsecond after the last. ``lie`` replaces the answer; ``reply`` is
    what became of it: "ok", "lost", or "" for a caller that died."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000_000
        self.store = MemoryBackend()
        self.history = History(lambda: self.now, "a tale")
        self.leased: dict[tuple[str, int], Leased] = {}

    def call(self, node: str, op: str, *args: Any, lie: Any = TRUE, reply: str = "ok", times: int = 1) -> Any:
        self.now += 1
        number = self.history.invoke(node, op, args)
        answer: Any = None
        for _ in range(times):
            audit = Audit(self.store, op, self.now)
            done(audit.before())
            answer = done(attrgetter(op)(self.store)(*args, at=self.now))
            seen = done(audit.after(answer))
            answer = answer if lie is TRUE else lie
            self.history.applied(number, self.now, answer, seen)
        if reply == "ok":
            self.history.ok(number, answer)
        elif reply:
            self.history.unknown(number, reply)
        return answer

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)

    def insert(self, *rows: Row, **how: Any) -> Any:
        return self.call("p", "insert", rows, **how)

    def claim(
        self, node: str = "w1", limit: int = 1, queues: tuple[str, ...] = ("q",), *, lost_below: int | None = None,
        **how: Any,
    ) -> list[Leased]:  # fmt: skip
        claimed: Claimed = self.call(node, "claim", Claim(node, queues, limit, LEASE, lost_below=lost_below), **how)
        for held in claimed.jobs:
            self.leased[node, int.from_bytes(held.id, "big")] = held
        return claimed.jobs

    def grant(self, node: str, *given: Leased, **how: Any) -> None:
        """A claim that is told to have brought these, whatever the store said."""
        self.claim(node, limit=max(1, len(given)), lie=Claimed(list(given)), **how)

    def finish(
        self, node: str = "w1", number: int = 1, state: JobState = JobState.COMPLETED, *, lie: Any = TRUE,
        reply: str = "ok", times: int = 1, epoch: int | None = None, **more: Any,
    ) -> Any:  # fmt: skip
        held = self.leased[node, number]
        settlement = Settlement(held.id, epoch or held.epoch, node, state, **more)
        given = lie if lie is TRUE else [lie]
        return self.call(node, "finish", (settlement,), lie=given, reply=reply, times=times)

    def beat(self, node: str = "w1", *numbers: int, **how: Any) -> Any:
        leases = [(self.leased[node, n].id, self.leased[node, n].epoch) for n in numbers]
        return self.call(node, "renew", Beat(node, node, ("q",), LEASE, leases), **how)

    def show(self, *nodes: str) -> None:
        """They are there, in a fleet that needs not have been at work for long."""
        for node in nodes:
            self.call(node, "renew", Beat(node, node, ("q",), LEASE, ttl=LEASE, at_work=0))

    def reap(self, *, lie: Any = TRUE, **more: Any) -> Any:
        return self.call("w1", "reap", Reap(**more), lie=lie)

    def alter(self, number: int, change: Change, **how: Any) -> Any:
        return self.call("op", "alter", Selector(ids=[job(number)]), change, **how)

    def cancel(self, number: int = 1, **how: Any) -> Any:
        return self.alter(number, Cancel(), **how)

    def pause(self, tenant: str | None = None, *, paused: bool = True) -> None:
        self.call("op", "policies.pause", QueuePause("q", tenant, paused=paused))

    def sweep(self, place: SweepTarget = SweepTarget.COMPLETED, older_than: int = SECOND, **how: Any) -> Any:
        return self.call("j", "sweep", SweepClause(target=place, older_than=older_than), **how)

    def removed(self, gone: list[JobId], clause: SweepClause, swept: Swept) -> None:
        """A sweep after which the observer missed these."""
        number = self.history.invoke("j", "sweep", (clause,))
        self.history.applied(number, self.now, swept, gone)

    def start(self, node: str = "w1", number: int = 1, epoch: int | None = None) -> None:
        self.history.start(node, Run(job(number), epoch or self.leased[node, number].epoch))

    def end(self, node: str = "w1", number: int = 1) -> None:
        self.history.end(node, Run(job(number), self.leased[node, number].epoch, "done"))

    def waiter(self, number: int, answer: Any, *, after: float = 0.1, timeout: float = 1.0) -> None:
        asked = self.history.invoke("c", "wait", Wait(job(number), int(timeout * SECOND)))
        self.wait(after)
        self.history.ok(asked, answer)

    def look(self, *, final: bool = False, without: int = 0, **changes: Any) -> None:
        """The observer's view; a lie leaves a job out or changes the record of job 1."""
        seen: Snapshot = done(snapshot(self.store, self.now, final=final))
        records = [r for r in seen.records if r.id != job(without)]
        if changes:
            records = [replace(r, **changes) if r.id == job(1) else r for r in records]
        self.history.snapshot(replace(seen, records=records))

    def run(self, node: str = "w1", number: int = 1, **more: Any) -> None:
        """Claim, run and complete."""
        self.claim(node)
        self.start(node, number)
        self.end(node, number)
        self.finish(node, number, **more)

    def lose(self, node: str = "w1", number: int = 1) -> None:
        """Claim, and never be heard of again until the lease is over."""
        self.claim(node)
        self.start(node, number)
        self.wait(4)

    def schedule(self, **options: Any) -> None:
        """A schedule of every ten seconds, the first of them ten seconds from now."""
        rule = EveryRule(10 * SECOND, self.now)
        definition = Definition(rule=rule, template=Template("t", {"parameters": b"p"}), **options)
        slot = definition.first(self.now)
        made = Schedule(name="s", uid=UID, queue="q", definition=definition.pack(), slot=slot, look_at=slot)
        self.call("k", "ticks.save", (Save(made, 0),))

    def planned(self, node: str = "w1", ahead: int = 0) -> Plan:
        """Look, and work out what to do."""
        looked: Looked = self.call(node, "ticks.due", Look())
        [one] = looked.schedules
        return make_plan(one, unpack(one.definition), looked.now, ahead)

    def plan(self, plan: Plan | None = None, node: str = "w1", **how: Any) -> Any:
        return self.call(node, "ticks.plan", (self.planned(node) if plan is None else plan,), **how)

    def govern(self, version: int = 0, *, lie: Any = TRUE, **rules: Any) -> None:
        """Give the queue rules."""
        self.call("g", "policies.save", Policy(queue="q", version=version, **rules), lie=lie)

    def verdict(self) -> Verdict:
        return check(self.history)
