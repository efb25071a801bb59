"""The state machine: memory against itself and the laws; that it gets everywhere; and that it finds planted faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.backends.memory import MemoryBackend
from headrace.testing.machine import machine_for, run_machine
from tests.backends.journal import JournalBackend
from tests.backends.planted import FAULTY
from tests.backends.planted_rules import BLATANT

RULES = {
    "rule insert",
    "rule insert_with_keys",
    "rule claim",
    "rule work",
    "rule finish",
    "rule finish_and_claim",
    "rule renew",
    "rule reap",
    "rule vanish",
    "rule sweep",
    "rule work_and_sweep",
    "rule alter_named",
    "rule alter_matching",
    "rule revisit",
    "rule interfere",
    "rule pause_queue",
    "rule fetch",
    "rule scan",
    "rule wait_until",
    "rule reconnect",
    "rule govern",
    "rule crowd",
    "rule sweep_tenants",
}
OUTCOMES = {
    "insert: new",
    "insert: same",
    "insert: same within the batch",
    "insert: duplicate",
    "insert: duplicate within the batch",
    "insert: duplicate of a job that is available",
    "insert: duplicate of a job that is running",
    "insert: duplicate of a job that is paused",
    "insert: duplicate of a job that is failed",
    "insert: replaced of a job that is available",
    "insert: replaced of a job that is paused",
    "insert: done",
    "insert: done with a result",
    "insert: full",
    "claim: nothing",
    "claim: short",
    "claim: full",
    "claim: from several queues",
    "claim: told when the next is due",
    "claim: expired",
    "claim: epoch 3",
    "claim: after a loss",
    "claim: after a failed attempt",
    "claim: a group's turn",
    "claim: tenants take turns",
    "claim: from queues with and without rules",
    "finish: available",
    "finish: paused",
    "finish: completed",
    "finish: cancelled",
    "finish: failed",
    "finish: fenced off",
    "finish: held",
    "finish: not held",
    "finish: nothing kept",
    "finish: moved",
    "finish: spawned",
    "finish: a cancel request won",
    "renew: extended",
    "renew: a lease past its end",
    "renew: lost",
    "renew: a cancel request",
    "renew: a paused queue",
    "renew: leaving",
    "reap: available",
    "reap: lost",
    "reap: cancelled",
    "reap: expired",
    "reap: nobody was there",
    "reap: spread",
    "reap: bounded",
    "reap: taken back after its expiry",
    "alter: cancel",
    "alter: cancel requested",
    "alter: cancel refused",
    "alter: pause",
    "alter: pause refused",
    "alter: resume",
    "alter: resume refused",
    "alter: requeue",
    "alter: requeue refused",
    "alter: requeue refused for the key",
    "alter: move",
    "alter: move to the same queue",
    "alter: move refused for the key",
    "alter: reprioritise",
    "alter: reprioritise refused",
    "alter: watch",
    "alter: watch refused",
    "alter: hold",
    "alter: hold refused",
    "alter: delete",
    "alter: delete refused",
    "alter: bounded",
    "rules: a queue paused",
    "rules: a queue resumed",
    "rules: a queue paused for a while",
    "fetch: found",
    "fetch: unknown",
    "scan: one page",
    "scan: several pages",
    "sweep: tenants",
    "sweep: by older_than",
    "sweep: by max_count",
    "sweep: by max_bytes",
    "sweep: by older_than and max_count",
    "sweep: a held result stays",
    "sweep: results",
    "sweep: more",
    "sweep: dry run",
    "reconnect: with a sibling",
    "rules: saved",
    "rules: saved by another",
    "rules: a queue is governed",
    "rules: a rate is shut",
    "rules: a tenant's rate is shut",
    "rules: a tenant's jobs run",
    "rules: a tenant has a limit",
    "rules: a tenant paused",
    "rules: a tenant resumed",
    "rules: a task paused",
    "rules: a task resumed",
}


@pytest.mark.parametrize("seed", range(6))
def test_memory_equals_itself_and_keeps_the_laws(seed: int) -> None:
    run_machine(machine_for(lambda place: MemoryBackend()), seed=seed, examples=30)


def test_every_rule_runs_and_every_outcome_comes_up() -> None:
    machine = machine_for(lambda place: MemoryBackend())
    for seed in range(100, 110):
        run_machine(machine, seed=seed, examples=60)
        if not (RULES | OUTCOMES) - set(machine.seen):
            break
    assert (RULES | OUTCOMES) - set(machine.seen) == set()


def test_a_durable_store_is_opened_again(tmp_path: Path) -> None:
    machine = machine_for(JournalBackend, durable=True, root=tmp_path)
    run_machine(machine, seed=0, examples=25)
    assert machine.seen["reconnect: anew"]
    assert list(tmp_path.iterdir()) == []


def test_the_same_seed_draws_the_same_sequences() -> None:
    first, second = (machine_for(lambda place: MemoryBackend()) for _ in range(2))
    for machine in (first, second):
        run_machine(machine, seed=7, examples=5)
    assert first.seen == second.seen


@pytest.mark.parametrize("faulty", [*FAULTY, *BLATANT])
def test_a_planted_fault_is_found(faulty: type[MemoryBackend]) -> None:
    with pytest.raises(AssertionError):
        run_machine(machine_for(lambda place: faulty()), seed=10, examples=300)
