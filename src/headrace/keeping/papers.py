"""What retention keeps in the store for itself: its rules, its last run, and a log of its runs, as documents."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from headrace.core.documents import TypedDocument
from headrace.keeping.archive_marks import MARKS, Marks, read_marks
from headrace.keeping.bounds import Rule
from headrace.seam.documents import DocumentStore

WORKERS = "workers"
"""The name under which the runs of all workers are logged."""
_LOG = "retention/log/"
_HOURS = 24 * 30
"""Hours that the log goes back, of those in which something was done."""
_MOST = 200
"""Runs that are logged by themselves in one hour; what comes after is added up."""


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


_RULES = TypedDocument[list[Rule]]("retention/rules", list[Rule], [])
_LAST = TypedDocument("retention/last", Last, Last())


class Papers:
    """The documents of retention. A change is repeated if another process was faster."""

    def __init__(self, documents: DocumentStore) -> None:
        self._documents = documents

    async def read(self) -> tuple[list[Rule], Last, Marks | None]:
        """The rules, the last run that found all in order, and how far ended jobs were archived, with a vault."""
        rules, last, marks = await self._documents.get([_RULES.name, _LAST.name, MARKS])
        return _RULES.value(rules), _LAST.value(last), read_marks(marks)

    async def change_rules(self, change: Callable[[list[Rule]], list[Rule]]) -> list[Rule]:
        """Replace the rules by what ``change`` makes of them."""
        return await _RULES.change(self._documents, lambda old: sorted(change(old), key=_order))

    async def save_last(self, last: Last) -> None:
        """Keep this run as the last one, unless there is a later one."""
        await _LAST.change(self._documents, lambda old: old if old.at > last.at and old.ages == last.ages else last)

    async def log(self, run: Run, *, add_up: bool) -> None:
        """Note a run. Those of workers are added up by the hour: there may be many."""
        await _log(_LOG + _hour(run.at)).change(self._documents, lambda runs: _noted(runs, run, add_up=add_up))
        names = [one.name for one in await self._documents.find(_LOG, limit=_HOURS + 10)]
        for old in names[:-_HOURS]:
            [document] = await self._documents.get([old])
            if document is not None:
                await self._documents.put(old, None, document.version)

    async def runs(self, limit: int) -> list[Run]:
        """The latest runs, latest first."""
        found: list[Run] = []
        for document in reversed(await self._documents.find(_LOG, limit=_HOURS + 10)):
            found += reversed(_log(document.name).value(document))
            if len(found) >= limit:
                break
        return found[:limit]


def _log(name: str) -> TypedDocument[list[Run]]:
    return TypedDocument(name, list[Run], [])


def _order(rule: Rule) -> tuple[str, str, str]:
    return rule.state.value, rule.queue or "", rule.task or ""


def _hour(at: int) -> str:
    return datetime.fromtimestamp(at / 1e6, UTC).strftime("%Y-%m-%dT%H")


def _noted(runs: list[Run], run: Run, *, add_up: bool) -> list[Run]:
    """The runs of an hour with one more."""
    for number, old in enumerate(runs):
        same = (old.by, old.forced, bool(old.stopped)) == (run.by, run.forced, bool(run.stopped))
        if same and (add_up or len(runs) >= _MOST):
            steps = {_kind(step): step for step in old.steps}
            for step in run.steps:
                before = steps.get(_kind(step))
                steps[_kind(step)] = step if before is None else add(before, step)
            both = replace(run, at=old.at, runs=old.runs + run.runs, steps=tuple(steps.values()))
            return [*runs[:number], both, *runs[number + 1 :]]
    return [*runs, run]


def _kind(step: Step) -> tuple[str, bool]:
    """What is added up: of one target, what went because of its age, and what was too much."""
    return step.target, step.cutoff is None


def add(old: Step, new: Step) -> Step:
    """Two steps as one."""
    kept = old.kept if new.kept is None else new.kept
    return replace(new, deleted=old.deleted + new.deleted, bytes=old.bytes + new.bytes, kept=kept)
