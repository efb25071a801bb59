"""claim: what may be granted (I2, I3, I5, I9, I14, I26), as what (I6, I23), and in which order (I8)."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.seam.records import Claim, Claimed, JobId, Leased, carried
from headrace.testing.sim.ledger import Ledger, short
from headrace.testing.sim.life import Life
from headrace.types import JobState

_NOT_AVAILABLE = {
    JobState.RUNNING: ("I3", "granted while another lease on it is current"),
    JobState.PAUSED: ("I26", "granted while it is paused"),
    JobState.CANCELLED: ("I14", "granted after it was cancelled"),
    JobState.COMPLETED: ("I5", "granted after it was completed"),
    JobState.FAILED: ("I5", "granted after it failed for good"),
}


def on_claim(book: Ledger, req: Claim, claimed: Claimed, now: int) -> None:
    """A claim was answered."""
    late = book.realm.claim(req, claimed, now)
    for one in claimed.expired:
        expire(book, one.id, now, "claim")
    line = [life for life in book.claimable(req, now) if life.id not in late]
    everybody = [life for life in book.claimable(replace(req, lost_below=None), now) if life.id not in late]
    if any(life.run_at <= now for queue in book.paused for life in _of(book, queue) if queue in req.queues):
        book.reach("paused queue passed over")
    if len(claimed.jobs) > req.limit:
        book.blame("I8", None, f"{len(claimed.jobs)} jobs were granted where {req.limit} were asked for")
    for job in claimed.jobs:
        _grant(book, req, job, now)
    _check_order(book, req, claimed, line)
    if any(map(book.realm.governs, req.queues)):
        _note_turns(book, claimed)
        book.turning.update(req.queues)
    else:
        passed = _check_passed_over(book, req, claimed, everybody)
        _check_chosen(book, req, claimed, passed, now)
    if len(claimed.jobs) < req.limit:
        _check_next(book, req, claimed, now)


def _note_turns(book: Ledger, claimed: Claimed) -> None:
    governed = [job for job in claimed.jobs if book.realm.governs(job.queue)]
    if len({job.tenant for job in governed}) > 1:
        book.reach("tenants took turns")
    if any(job.group is not None for job in governed):
        book.reach("a group had its turn")


def expire(book: Ledger, job_id: JobId, now: int, by: str) -> None:
    """A claim or a reap says that it cancelled this job because it had expired."""
    life = book.jobs.get(job_id)
    if life is None:
        book.blame("I2", job_id, f"{by} cancelled a job that is not there")
        return
    if life.state is not JobState.AVAILABLE or life.run_at > now or not life.expired(now):
        book.blame("I1", job_id, f"{by} cancelled a job as expired that is {life.state}, expires {life.expires_at}")
    book.reach(f"expired by {by}")
    book.finish(life, JobState.CANCELLED, now, "expired")


def _of(book: Ledger, queue: str) -> list[Life]:
    return [life for life in book.places[JobState.AVAILABLE].values() if life.queue == queue]


def _grant(book: Ledger, req: Claim, job: Leased, now: int) -> None:
    life = book.jobs.get(job.id)
    if life is None:
        how = book.gone.get(job.id)
        book.blame("I2", job.id, f"granted, but {f'it was {how}' if how else 'nobody ever enqueued it'}")
        return
    if life.state is not JobState.AVAILABLE:
        invariant, message = _NOT_AVAILABLE[life.state]
        book.blame(invariant, job.id, message)
    elif life.run_at > now:
        book.blame("I9", job.id, f"granted {life.run_at - now} µs before it is due")
    elif life.expired(now):
        book.blame("I9", job.id, "granted after it had expired")
    if life.queue in book.paused:
        book.blame("I26", job.id, f"granted from the paused queue {life.queue!r}")
    if life.queue not in req.queues:
        book.blame("I8", job.id, f"granted from {life.queue!r}, which the claim does not name")
    if job.epoch != max(life.epoch + 1, now):
        book.blame("I6", job.id, f"granted with epoch {job.epoch} after epoch {life.epoch}, at {now}")
    if job.begun != life.begun:
        book.blame("I6", job.id, f"granted as {'' if job.begun else 'not '}begun before, which is not so")
    if req.lost_below is not None and life.lost >= req.lost_below:
        book.blame("I8", job.id, f"granted after {life.lost} losses, where fewer than {req.lost_below} were asked for")
    _check_counters(book, life, job)
    _check_payload(book, req, life, job)
    book.reach("granted again" if life.epoch else "granted")
    if life.epoch and not life.begun:
        book.reach("granted again and never begun")
    book.grant(life, job.epoch, req.holder, now + req.lease_for)


def _check_counters(book: Ledger, life: Life, job: Leased) -> None:
    if (job.attempt, job.lost) != (life.attempt, life.lost):
        book.blame(
            "I6", job.id, f"granted with attempt {job.attempt}, lost {job.lost}; should be {life.attempt}, {life.lost}"
        )
        life.attempt, life.lost = job.attempt, job.lost
    if job.max_attempts is not None and job.attempt >= job.max_attempts:
        book.blame("I6", job.id, f"granted once more after {job.attempt} attempts of {job.max_attempts}")


def _check_payload(book: Ledger, req: Claim, life: Life, job: Leased) -> None:
    row = life.row
    cells = life.cells if req.want is None else {name: cell for name, cell in life.cells.items() if name in req.want}
    if job.cells != cells:
        book.blame("I23", job.id, f"granted with cells {job.cells}, which should be {cells}")
    given = (job.task, job.tenant, job.group, *carried(job), job.headers, job.error)
    right = (row.task, row.tenant, row.group, *carried(row), row.headers, life.error)
    if given != right:
        book.blame("I23", job.id, f"granted with {given}, which should be {right}")
    if job.key != life.key:
        book.blame("I13", job.id, f"granted with key {job.key!r}, which should be {life.key!r}")
    if (job.queue, job.priority, job.run_at, job.enqueued_at) != (
        life.queue,
        life.priority,
        life.run_at,
        life.enqueued_at,
    ):
        book.blame("I8", job.id, f"granted as {job.queue!r}, {job.priority}, {job.run_at}; should be {life.place}")


def _check_order(book: Ledger, req: Claim, claimed: Claimed, line: list[Life]) -> None:
    ranks = {life.id: rank for rank, life in enumerate(line)}
    granted = [job.id for job in claimed.jobs if job.id in ranks]
    taken = frozenset(granted)
    if granted != sorted(granted, key=ranks.__getitem__):
        book.blame("I8", granted[0], "the jobs of one claim are out of order")
    last = max((ranks[job_id] for job_id in granted), default=-1)
    reach = len(line) if len(claimed.jobs) < req.limit else last + 1
    passed = [life.id for life in line[:reach] if life.id not in taken]
    if len(passed) > book.inversions:
        book.blame("I8", passed[0], f"passed over, and {len(passed) - 1} more, in favour of later ones or of nobody")


def _check_passed_over(book: Ledger, req: Claim, claimed: Claimed, everybody: list[Life]) -> frozenset[str]:
    """The answer says what ``lost_below`` left out, and only that. Returns the queues of it."""
    ranks = {life.id: rank for rank, life in enumerate(everybody)}
    full = len(claimed.jobs) >= req.limit
    reach = 1 + max((ranks.get(job.id, -1) for job in claimed.jobs), default=-1) if full else len(everybody)
    left_out = [life for life in everybody[:reach] if req.lost_below is not None and life.lost >= req.lost_below]
    if claimed.passed_over != bool(left_out):
        book.blame(
            "I22", left_out[0].id if left_out else None, f"passed_over is {claimed.passed_over}, of {len(left_out)}"
        )
    if left_out:
        book.reach("passed over a job that was lost too often")
    return frozenset(life.queue for life in left_out)


def _check_chosen(book: Ledger, req: Claim, claimed: Claimed, passed: frozenset[str], now: int) -> None:
    """``passed``: the queues of which jobs were passed over."""
    if req.lost_below is not None:
        book.bounds[book.node] = req.lost_below
    elif req.limit == 1:
        mine = [queue for queue in req.queues if book.chosen.get(queue, ("", 0))[0] == req.holder]
        book.chosen |= dict.fromkeys(mine, (req.holder, now + req.lease_for // 3))
    if not book.turning.isdisjoint(req.queues):
        return
    held = [queue for queue in passed if _makes_room(book, queue, req, now)]
    if claimed.chosen != bool(held):
        book.blame("I28", None, f"chosen is {claimed.chosen}, where it should be {bool(held)}: {book.chosen}")
    if claimed.chosen:
        book.reach("chosen to make room")


def _makes_room(book: Ledger, queue: str, req: Claim, now: int) -> bool:
    holder, until = book.chosen.get(queue, ("", 0))
    if until > now:
        return holder == req.holder
    if holder == req.holder and until + req.lease_for > now:
        return False
    book.chosen[queue] = (req.holder, now + req.lease_for)
    return True


def _check_next(book: Ledger, req: Claim, claimed: Claimed, now: int) -> None:
    """Jobs that the claim passes over do not count."""
    bound = 2**31 if req.lost_below is None else req.lost_below
    left = [life for life in book.waiting(req.queues) if life.run_at > now or life.lost < bound]
    if not left:
        return
    book.reach("claim knows what is next")
    first = min(left, key=lambda life: life.run_at)
    if claimed.next_in is None or now + claimed.next_in > max(first.run_at, now):
        due = first.run_at - now
        book.blame("I22", first.id, f"next_in is {claimed.next_in}, but {short(first.id)} is due in {due} µs")
