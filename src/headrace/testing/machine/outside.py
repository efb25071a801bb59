"""The rules of outsiders, who look and interfere: alter, fetch, scan."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from headrace.seam.records import (
    Altered,
    Beat,
    Cancel,
    Change,
    JobId,
    JobKey,
    Move,
    Requeue,
    Selector,
    Settlement,
)
from headrace.testing.machine import draws
from headrace.testing.machine.twins import check_equal
from headrace.testing.machine.working import WorkingRules
from headrace.types import JobState


class OutsideRules(WorkingRules):
    """Jobs are changed, and looked at, without a lease."""

    # -- alter

    @rule(alteration=draws.alterations())
    def alter_named(self, alteration: tuple[Selector, Change]) -> None:
        self.begin_rule("alter_named")
        self._alter(*alteration)

    @rule(alteration=draws.mass_alterations())
    def alter_matching(self, alteration: tuple[Selector, Change]) -> None:
        self.begin_rule("alter_matching")
        sel, change = alteration
        if len(self._alter(sel, change)) == sel.limit:
            self.note("alter: bounded")

    @precondition(lambda self: any(record.state.terminal for record in self.world.books.values()))
    @rule(alteration=draws.revisits(), after=draws.pauses)
    def revisit(self, alteration: tuple[Selector, Change], after: int) -> None:
        self.begin_rule("revisit", after)
        self._alter(*alteration)

    @precondition(lambda self: self.world.live_fences())
    @rule(settlement=draws.settlements(), change=draws.changes(), beat=draws.beats(), after=draws.pauses)
    def interfere(self, settlement: Settlement, change: Change, beat: Beat, after: int) -> None:
        self.begin_rule("interfere")
        self._alter(Selector(ids=[settlement.id]), change)
        self.look()
        self.beat(replace(beat, holder=settlement.holder))
        self.look()
        self.wait(after)
        self.settle([settlement])

    def _alter(self, sel: Selector, change: Change) -> list[Altered]:
        answers = self.twins.ask(lambda backend: backend.alter(sel, change, self.now))
        self.requeued = isinstance(change, Requeue)
        self._check_keys_stay(answers)
        for answer in answers:
            self._note_altered(change, answer)
        return answers

    def _check_keys_stay(self, answers: Sequence[Altered]) -> None:
        records = self.twins.run(self.store.fetch([answer.id for answer in answers], frozenset(), self.now))
        for record in records:
            assert record is None or record.key == self.world.books[record.id].key, "a change took a job's key away"

    def _note_altered(self, change: Change, answer: Altered) -> None:
        kind = type(change).__name__.lower()
        self.note(f"alter: {kind}" if answer.changed else f"alter: {kind} refused")
        match change:
            case Cancel() if answer.changed and answer.before is JobState.RUNNING:
                self.note("alter: cancel requested")
            case Move(queue) if not answer.changed and answer.before in Move.applies:
                old = self.world.books[answer.id]
                self.note("alter: move refused for the key" if old.queue != queue else "alter: move to the same queue")
            case Requeue() if not answer.changed and answer.before in Requeue.applies:
                self.note("alter: requeue refused for the key")

    # -- reading

    @rule(names=st.lists(draws.names(), max_size=6), want=draws.sections)
    def fetch(self, names: list[JobId | JobKey], want: frozenset[str]) -> None:
        self.begin_rule("fetch")
        records = self.twins.ask(lambda backend: backend.fetch(names, want, self.now))
        self.note(*("fetch: unknown" if record is None else "fetch: found" for record in records))

    @rule(sel=draws.selectors(), limit=draws.limits)
    def scan(self, sel: Selector, limit: int) -> None:
        self.begin_rule("scan")
        given, expected = (self.twins.scan(backend, sel, limit, self.now) for backend in (self.store, self.twins.model))
        check_equal(given, expected)
        ids = [record.id for record in given]
        assert ids == sorted(ids, reverse=True), "a scan tells the newest id first"
        self.note("scan: several pages" if len(given) > limit else "scan: one page")
