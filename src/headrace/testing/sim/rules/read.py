"""Reading: what fetch, scan, stats and the observer see equals what the answers so far imply."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.seam.records import JobId, JobKey, Page, QueueStats, Record, Selector, Stats, SweepTarget, carried
from headrace.testing.sim.history import Snapshot
from headrace.testing.sim.ledger import Ledger
from headrace.testing.sim.life import Life
from headrace.testing.sim.rules.ticks import on_seen
from headrace.types import SECTIONS, JobState

_EVERYTHING = frozenset((*SECTIONS, "result", "error"))
_NOTHING: frozenset[str] = frozenset()


def on_fetch(
    book: Ledger, names: Sequence[JobId | JobKey], want: frozenset[str], answers: Sequence[Record | None], now: int
) -> None:
    """Records were fetched."""
    if len(names) != len(answers):
        book.blame("I16", None, f"{len(names)} records were asked for and {len(answers)} answered")
    for name, record in zip(names, answers, strict=False):
        life = book.by_key(name.queue, name.key) if isinstance(name, JobKey) else book.jobs.get(name)
        if record is not None and life is not None and record.id == life.id:
            compare(book, life, record, want, now)
        elif record is not None or life is not None:
            found = None if record is None else record.id.hex()
            invariant = "I13" if isinstance(name, JobKey) else "I1" if record is None else "I2"
            book.blame(invariant, None if life is None else life.id, f"fetch of {name!r} found {found}")


def on_scan(book: Ledger, sel: Selector, after: str | None, limit: int, page: Page, now: int) -> None:
    """A page was scanned."""
    if len(page.records) > limit:
        book.blame("I16", None, f"a scan gave {len(page.records)} records where {limit} were asked for")
    for record in page.records:
        life = book.jobs.get(record.id)
        if life is None:
            book.blame("I2", record.id, "a scan found a job that should not be there")
        else:
            compare(book, life, record, _NOTHING, now)


def on_now(book: Ledger, clock: int, now: int) -> None:
    """The store was asked for its clock."""
    if clock != now:
        book.blame("I16", None, f"the store's clock is answered as {clock}, which should be {now}")


def on_stats(book: Ledger, stats: Stats, now: int, queues: Sequence[str] | None = None) -> None:
    """The store was asked for its numbers, or for those of some queues."""
    told = {line.queue: line for line in stats.queues if line != QueueStats(line.queue)}
    right = {line.queue: line for line in _count(book, now) if queues is None or line.queue in queues}
    for queue in sorted(told.keys() | right.keys()):
        if told.get(queue) != right.get(queue):
            book.blame("I21", None, f"counters say {told.get(queue)}, which should be {right.get(queue)}")
    for place in stats.kept:
        if place.target == SweepTarget.KEYS:
            continue
        count = len(book.ticks if place.target == SweepTarget.TICKS else book.places[JobState(place.target)])
        if place.count != count:
            book.blame("I21", None, f"{place.target} is counted as {place.count}, which should be {count}")


def on_snapshot(book: Ledger, snapshot: Snapshot) -> None:
    """The observer has read everything."""
    found: dict[JobId, Record] = {}
    for record in snapshot.records:
        if record.id in found:
            book.blame("I16", record.id, "a scan showed the job twice")
        found[record.id] = record
        life = book.jobs.get(record.id)
        if life is not None:
            compare(book, life, record, _EVERYTHING, snapshot.now)
        else:
            how = book.gone.get(record.id)
            message = f"stored, though it was {how}" if how else "stored, though nobody asked for it"
            book.blame("I5" if how else "I2", record.id, message)
    for job_id in book.jobs:
        if job_id not in found:
            book.blame("I1", job_id, f"gone, though it should be {book.jobs[job_id].state}")
    on_stats(book, snapshot.stats, snapshot.now)
    on_seen(book, snapshot.schedules, snapshot.ticks)


def compare(book: Ledger, life: Life, record: Record, want: frozenset[str], now: int) -> None:
    """One record against what it should be, each difference under the invariant that it breaks."""
    running = life.state is JobState.RUNNING
    row = life.row
    if record.state is not life.state:
        invariant = "I5" if life.state.terminal else "I14" if life.cancel_requested else "I16"
        book.blame(invariant, life.id, f"is {record.state}, which should be {life.state}")
    differences = (
        ("I6", (record.epoch, record.attempt, record.lost), (life.epoch, life.attempt, life.lost)),
        ("I8", (record.queue, record.priority, record.run_at), (life.queue, life.priority, life.run_at)),
        ("I13", record.key, life.key),
        ("I9", (record.enqueued_at, record.expires_at), (life.enqueued_at, life.expires_at)),
        ("I17", record.finished_at, life.finished_at),
        ("I3", record.lease_until, life.lease_until if running else None),
        ("I14", record.cancel_requested, running and life.cancel_requested),
        ("I16", record.reason, life.reason),
        ("I23", record.cells, {name: cell for name, cell in life.cells.items() if name in want}),
        ("I23", record.error, life.error if "error" in want else None),
        (
            "I23",
            (record.task, record.tenant, record.group, record.headers),
            (row.task, row.tenant, row.group, row.headers),
        ),
        ("I23", carried(record), carried(row)),
        ("I15", record.held, life.held(now)),
        ("I15", record.result, life.result if life.held(now) and "result" in want else None),
    )
    for invariant, told, right in differences:
        if told != right:
            book.blame(invariant, life.id, f"is recorded with {told!r}, which should be {right!r}")


def _count(book: Ledger, now: int) -> list[QueueStats]:
    by_queue: dict[str, list[Life]] = {queue: [] for queue in sorted(book.paused)}
    for life in book.jobs.values():
        by_queue.setdefault(life.queue, []).append(life)
    return [_queue(book, queue, lives, now) for queue, lives in by_queue.items()]


def _queue(book: Ledger, queue: str, lives: list[Life], now: int) -> QueueStats:
    def count(state: JobState) -> int:
        return sum(life.state is state for life in lives)

    waits = [life.run_at for life in lives if life.state is JobState.AVAILABLE and book.realm.has_turn(life)]
    oldest = min(waits, default=None)
    return QueueStats(
        queue,
        queue in book.paused,
        count(JobState.AVAILABLE),
        sum(run_at > now for run_at in waits),
        count(JobState.RUNNING),
        count(JobState.PAUSED),
        count(JobState.COMPLETED),
        count(JobState.CANCELLED),
        count(JobState.FAILED),
        now - oldest if oldest is not None and oldest <= now else None,
        next_due_in=min((run_at - now for run_at in waits if run_at > now), default=None),
    )
