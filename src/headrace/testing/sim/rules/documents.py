"""Documents, and ended jobs by their ends: what must hold of the answers."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.seam.archive import EndedPage, Mark, Removal
from headrace.seam.documents import Document
from headrace.testing.sim.ledger import Ledger
from headrace.testing.sim.rules.read import compare
from headrace.types import JobState


def on_get_documents(book: Ledger, names: Sequence[str], found: Sequence[Document | None], now: int) -> None:
    """Documents were read."""
    right = [book.documents.get(name) for name in names]
    if list(found) != right:
        book.blame("I16", None, f"documents are answered as {found}, which should be {right}")


def on_put_document(book: Ledger, name: str, body: bytes | None, version: int, done: bool, now: int) -> None:
    """A document was replaced or removed, or was not."""
    stored = book.documents.get(name)
    right = version == (0 if stored is None else stored.version)
    if done is not right:
        book.blame("I16", None, f"a change of document {name!r} is answered with {done}, which should be {right}")
    if right and body is None:
        book.documents.pop(name, None)
    elif right and body is not None:
        book.documents[name] = Document(name, version + 1, body)


def on_find_documents(
    book: Ledger, prefix: str, after: str, limit: int, found: Sequence[Document], now: int
) -> None:  # fmt: skip
    """Documents were looked for."""
    names = sorted(name for name in book.documents if name.startswith(prefix) and name > after)
    on_get_documents(book, names[:limit], found, now)


def on_ended(
    book: Ledger, state: JobState, after: Mark | None, limit: int, want: frozenset[str], max_bytes: int,
    page: EndedPage, now: int,
) -> None:  # fmt: skip
    """Ended jobs were read."""
    marks = [Mark(record.finished_at or 0, record.id) for record in page.records]
    if marks != sorted(marks) or (after is not None and marks and marks[0] <= after) or len(marks) > limit:
        book.blame("I16", None, f"ended jobs are answered out of order, or too many of them: {marks}")
    for record in page.records:
        life = book.jobs.get(record.id)
        if life is None:
            book.blame("I2", record.id, "a job was read as ended that should not be there")
        else:
            compare(book, life, record, want, now)


def on_removals(book: Ledger, after: int, found: list[Removal], now: int) -> None:
    """Counts of removed jobs were read: those of the first hour of which there are any."""
    hour = min((scope[0] for scope in book.removals if scope[0] > after), default=None)
    right = {scope: jobs for scope, jobs in book.removals.items() if scope[0] == hour}
    if {(one.hour, one.state, one.task, one.tenant): one.jobs for one in found} != right:
        book.blame("I17", None, f"removed jobs are counted as {found}; should be {right}")


def on_forget_removals(book: Ledger, most: int, limit: int, gone: int, now: int) -> None:
    """Counts of the oldest hours were forgotten."""
    right = min(limit, max(0, len(book.removals) - most))
    if gone != right:
        book.blame("I17", None, f"{gone} counts of removed jobs were forgotten; should be {right}")
    for scope in sorted(book.removals)[:right]:
        del book.removals[scope]
