"""Reads a history and says whether it is one that may happen.

The check is a pure function. It replays the ``applied`` events in their order against a ledger of what the store must
hold by then, so every answer is judged by all answers before it; handlers, waiters and senders are judged by the same
ledger, and every snapshot must equal it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.testing.sim.history import Applied, Event, History, Kind, Snapshot
from headrace.testing.sim.ledger import Ledger
from headrace.testing.sim.rules.alter import on_alter
from headrace.testing.sim.rules.claim import on_claim
from headrace.testing.sim.rules.clients import Clients
from headrace.testing.sim.rules.documents import (
    on_ended,
    on_find_documents,
    on_forget_removals,
    on_get_documents,
    on_put_document,
    on_removals,
)  # fmt: skip
from headrace.testing.sim.rules.finish import on_finish
from headrace.testing.sim.rules.insert import on_insert
from headrace.testing.sim.rules.lease import on_reap, on_renew
from headrace.testing.sim.rules.policies import on_group, on_limit, on_pause, on_policies, on_save_policy, on_tenants
from headrace.testing.sim.rules.read import on_fetch, on_now, on_scan, on_snapshot, on_stats
from headrace.testing.sim.rules.rest import on_rest
from headrace.testing.sim.rules.runs import Runs
from headrace.testing.sim.rules.sweep import on_sweep
from headrace.testing.sim.rules.ticks import on_due, on_find, on_history, on_note, on_plan, on_save
from headrace.testing.sim.story import tell
from headrace.testing.sim.verdict import Verdict

_RULES: dict[str, Callable[..., None]] = {
    "now": on_now,
    "insert": on_insert,
    "claim": on_claim,
    "finish": on_finish,
    "renew": on_renew,
    "reap": on_reap,
    "alter": on_alter,
    "fetch": on_fetch,
    "scan": on_scan,
    "sweep": on_sweep,
    "ticks.save": on_save,
    "ticks.find": on_find,
    "ticks.due": on_due,
    "ticks.plan": on_plan,
    "ticks.history": on_history,
    "ticks.note": on_note,
    "policies.save": on_save_policy,
    "policies.limit": on_limit,
    "policies.pause": on_pause,
    "policies.find": on_policies,
    "policies.tenants": on_tenants,
    "policies.group": on_group,
    "documents.get": on_get_documents,
    "documents.put": on_put_document,
    "documents.find": on_find_documents,
    "archive.ended": on_ended,
    "archive.removals": on_removals,
    "archive.forget_removals": on_forget_removals,
}


def check(history: History, *, inversions: int = 0) -> Verdict:
    """Judge a history. ``inversions``: how many jobs a claim may pass over, for stores that take calls at once."""
    reader = _Reader(history, inversions)
    for event in history:
        reader.read(event)
    return reader.verdict()


class _Reader:
    def __init__(self, history: History, inversions: int) -> None:
        self._history = history
        self._book = Ledger(inversions)
        self._runs = Runs(self._book)
        self._clients = Clients(self._book)
        self._final: Snapshot | None = None

    def read(self, event: Event) -> None:
        self._book.seq, self._book.node = event.seq, event.node
        match event.kind:
            case Kind.INVOKE:
                self._invoked(event)
            case Kind.APPLIED:
                self._applied(event.op, self._history.invocation(event.call).data, event.data)
                self._clients.applied(event.call, event.data.answer)
            case Kind.OK:
                self._answered(event)
            case Kind.FAIL if event.op == "wait":
                self._clients.waited(self._history.invocation(event.call), event)
            case Kind.START:
                self._runs.start(event.node, event.data)
            case Kind.END:
                self._runs.end(event.node, event.data)
            case Kind.FAULT:
                self._broke(event)
            case Kind.SNAPSHOT:
                self._seen(event.data)

    def verdict(self) -> Verdict:
        violations = tuple(self._book.violations)
        final = self._final
        return Verdict(
            seed=self._history.seed,
            events=len(self._history),
            violations=violations,
            lost=() if final is None else self._clients.lost(final),
            unexpected=() if final is None else self._clients.unexpected(final),
            duplicated=tuple(self._runs.repeated),
            recovered=self._clients.recovered(),
            points=dict(sorted(self._book.points.items())),
            story=tell(self._history, violations[0]) if violations else "",
        )

    def _invoked(self, event: Event) -> None:
        if event.op == "insert":
            self._clients.invoked(event.data[0])
        elif event.op in ("finish", "finish_and_claim"):
            for settlement in event.data[0]:
                self._runs.settling(event.node, settlement)
        elif event.op == "wait":
            self._clients.waits(event)

    def _broke(self, event: Event) -> None:
        self._book.reach(f"fault: {event.op}")
        if event.op == "crash":
            self._runs.crashed(event.node)
        elif event.op == "leap":
            self._clients.leapt(event.data)

    def _applied(self, op: str, args: Any, done: Applied) -> None:
        book, answer, now = self._book, done.answer, done.now
        match op:
            case "finish_and_claim":
                batch, req = args
                states, claimed = answer
                on_finish(book, batch, states, now)
                on_claim(book, req, claimed, now)
            case "reap" | "sweep":
                _RULES[op](book, *args, answer, done.audit or (), now)
            case "stats":
                on_stats(book, answer, now, *args)
            case _:
                _RULES[op](book, *args, answer, now)
        if op == "insert":
            self._clients.accepted(args[0], answer)
        elif op in ("finish", "finish_and_claim"):
            for settlement, state in zip(args[0], answer if op == "finish" else answer[0], strict=False):
                if state is not None:
                    self._runs.settled(settlement.id)

    def _answered(self, event: Event) -> None:
        asked = self._history.invocation(event.call)
        if event.op == "wait":
            self._clients.waited(asked, event)
            return
        self._clients.answered(event)
        if event.op == "insert":
            self._clients.acknowledged(asked.data[0], event.data)
        elif event.op == "renew":
            for job_id, epoch in event.data.lost:
                self._runs.told_lost(event.node, job_id, epoch)

    def _seen(self, snapshot: Snapshot) -> None:
        on_snapshot(self._book, snapshot)
        if snapshot.final:
            self._final = snapshot
            on_rest(self._book, snapshot.now)
