"""What retention keeps in the store for itself: its rules, its last run, and a log of its runs, as documents."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headrace.core.documents import Body, change_document
from headrace.keeping.archive_marks import MARKS, Marks, read_marks
from headrace.keeping.bounds import Rule
from headrace.seam.documents import DocumentStore

WORKERS = "workers"
"""The name under which the runs of all workers are logged."""
_RULES = "retention/rules"
_LAST = "retention/last"
_LOG = "retention/log/"
_HOURS = 24 * 30
"""Hours that the log goes back, of those in which something was done."""
_MOST = 200
"""Runs that are logged by themselves in one hour; what comes after is added up."""

D = TypeVar("D", bound=Struct)


class Step(Struct, frozen=True, kw_only=True):
    """What one run did about one target."""

    target: str
    deleted: int
    bytes: int = 0
    kept: int | None = None
    """None: it is not known."""
    cutoff: int | None = None
    """What ended at this instant or before was too old; None: age was no reason."""
    retention: int | None = None
    """The age behind that, in microseconds: the shortest, if jobs are kept for different times."""


class Run(Struct, frozen=True, kw_only=True):
    """A run, or all runs of workers in one hour, added up."""

    at: int
    by: str = ""
    runs: int = 1
    forced: bool = False
    steps: tuple[Step, ...] = ()
    stopped: str = ""
    """Why nothing was deleted because of its age; empty: it was."""


class Last(Struct, frozen=True, kw_only=True):
    """The last run that found all in order."""

    at: int = 0
    ages: dict[str, int | None] = {}
    """By scope: the ages that it went by."""


class _RuleBook(Struct, frozen=True):
    rules: list[Rule] = []


class _Log(Struct, frozen=True):
    runs: list[Run] = []


class Papers:
    """The documents of retention. A change is repeated if another process was faster."""

    def __init__(self, documents: DocumentStore) -> None:
        self._documents = documents

    async def read(self) -> tuple[list[Rule], Last, Marks | None]:
        """The rules, the last run that found all in order, and how far ended jobs were archived, with a vault."""
        rules, last, marks = await self._documents.get([_RULES, _LAST, MARKS])
        book = _RuleBook() if rules is None else _decoded(rules.body, _RuleBook())
        return book.rules, Last() if last is None else _decoded(last.body, Last()), read_marks(marks)

    async def change_rules(self, change: Callable[[list[Rule]], list[Rule]]) -> list[Rule]:
        """Replace the rules by what ``change`` makes of them."""
        book = await self._change(_RULES, _RuleBook(), lambda old: _RuleBook(sorted(change(old.rules), key=_order)))
        return book.rules

    async def save_last(self, last: Last) -> None:
        """Keep this run as the last one, unless there is a later one."""
        await self._change(_LAST, Last(), lambda old: old if old.at > last.at and old.ages == last.ages else last)

    async def log(self, run: Run, *, add_up: bool) -> None:
        """Note a run. Those of workers are added up by the hour: there may be many."""
        name = _LOG + _hour(run.at)
        await self._change(name, _Log(), lambda log: _Log(_noted(log.runs, run, add_up=add_up)))
        names = [one.name for one in await self._documents.find(_LOG, limit=_HOURS + 10)]
        for old in names[:-_HOURS]:
            [document] = await self._documents.get([old])
            if document is not None:
                await self._documents.put(old, None, document.version)

    async def runs(self, limit: int) -> list[Run]:
        """The latest runs, latest first."""
        found: list[Run] = []
        for document in reversed(await self._documents.find(_LOG, limit=_HOURS + 10)):
            found += reversed(_decoded(document.body, _Log()).runs)
            if len(found) >= limit:
                break
        return found[:limit]

    async def _change(self, name: str, empty: D, change: Callable[[D], D]) -> D:
        new = empty

        def replaced(body: Body) -> Body:
            nonlocal new
            old = _decoded(body, empty)
            new = change(old)
            return body if new == old else msgspec.json.encode(new)

        await change_document(self._documents, name, replaced)
        return new


def _decoded(body: Body, empty: D) -> D:
    return empty if body is None else msgspec.json.decode(body, type=type(empty))


def _order(rule: Rule) -> tuple[str, str, str]:
    return rule.state.value, rule.queue or "", rule.task or ""


def _hour(at: int) -> str:
    return datetime.fromtimestamp(at / 1e6, UTC).strftime("%Y-%m-%dT%H")


def _noted(runs: list[Run], run: Run, *, add_up: bool) -> list[Run]:
    """The runs of an hour with one more."""
    for number, old in enumerate(runs):
        same = (old.by, old.forced, bool(old.stopped)) == (run.by, run.forced, bool(run.stopped))
        if same and (add_up or len(runs) >= _MOST):
            steps = {step.target: step for step in old.steps}
            for step in run.steps:
                before = steps.get(step.target)
                steps[step.target] = step if before is None else _sum(before, step)
            both = replace(run, at=old.at, runs=old.runs + run.runs, steps=tuple(steps.values()))
            return [*runs[:number], both, *runs[number + 1 :]]
    return [*runs, run]


def _sum(old: Step, new: Step) -> Step:
    return replace(new, deleted=old.deleted + new.deleted, bytes=old.bytes + new.bytes)
