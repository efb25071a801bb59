"""The store as the answers that it has given so far say it must be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from headrace.seam.archive import HOUR
from headrace.seam.documents import Document
from headrace.seam.records import Claim, JobId, Row
from headrace.seam.ticks import Schedule, Tick
from headrace.testing.sim.life import Life
from headrace.testing.sim.realm import Realm
from headrace.testing.sim.verdict import Violation
from headrace.types import JobState

_MOST_VIOLATIONS = 100
LIVE = (JobState.AVAILABLE, JobState.RUNNING, JobState.PAUSED)


class Span:
    """One lease: the events at which it was granted and, once it has, ended."""

    def __init__(self, granted: int, lost: int) -> None:
        self.granted = granted
        self.lost = lost
        self.ended: int | None = None
        self.settled = False
        """Whether its holder has sent a settlement."""


class Beats(NamedTuple):
    """When a holder last beat, how long it is listed for that, and since when it has been steady."""

    seen_at: int
    listed_until: int
    steady_since: int


class Ledger:
    """Every job that should be there, and what was wrong on the way."""

    def __init__(self, inversions: int = 0) -> None:
        self.inversions = inversions
        """How many jobs a claim may pass over: 0 where the store takes one call at a time."""
        self.seq = 0
        """The event that is being read."""
        self.jobs: dict[JobId, Life] = {}
        self.places: dict[JobState, dict[JobId, Life]] = {state: {} for state in JobState}
        self.gone: dict[JobId, str] = {}
        """Jobs whose record went lawfully, and how."""
        self.keys: dict[tuple[str, str], JobId] = {}
        """The job that last took each key."""
        self.outlived: dict[tuple[str, str], tuple[JobId, int]] = {}
        """Keys whose job was swept while it held them, and until when they are held."""
        self.paused: set[str] = set()
        self.node = ""
        """The node whose call is being read."""
        self.spans: dict[tuple[JobId, int, str], Span] = {}
        """Every lease by job, epoch and node."""
        self.epochs: set[tuple[JobId, int]] = set()
        """All that were ever given out."""
        self.bounds: dict[str, int] = {}
        """By node: how often a job may have been lost that it claims together with others."""
        self.chosen: dict[str, tuple[str, int]] = {}
        """By queue: the chosen holder, which makes room for jobs that were lost more often, and until when."""
        self.turning: set[str] = set()
        """Queues that were claimed from beside governed ones: nobody knows of which of them jobs were passed over."""
        self.beats: dict[str, Beats] = {}
        """By holder."""
        self.at_work_since = 0
        """Since when somebody has been listed."""
        self.absence = (0, 0)
        """When nobody was, the last time that a fleet at work had vanished."""
        self.ends: dict[JobId, list[tuple[JobState, bytes | None]]] = {}
        """Every end that a job ever came to."""
        self.documents: dict[str, Document] = {}
        self.removals: Counter[tuple[int, str, str, str]] = Counter()
        """What sweeps have removed, by hour, state, task and tenant."""
        self.schedules: dict[str, Schedule] = {}
        self.ticks: dict[tuple[bytes, int], Tick] = {}
        """By schedule and slot, in the order in which they were planned."""
        self.looks: dict[tuple[str, bytes, int], tuple[int, int]] = {}
        """When a node has first and last seen a schedule at a version."""
        self.violations: list[Violation] = []
        self.points: Counter[str] = Counter()
        self.realm = Realm(self.jobs, self.blame)

    def blame(self, invariant: str, job_id: JobId | None, message: str) -> None:
        """Something is not as it must be."""
        if len(self.violations) < _MOST_VIOLATIONS:
            self.violations.append(Violation(invariant, message, self.seq, job_id))

    def reach(self, point: str) -> None:
        """A situation worth having been in has come up."""
        self.points[point] += 1

    # -- jobs

    def add(self, row: Row, now: int) -> None:
        """A job was accepted."""
        old = self.jobs.get(row.id)
        if old is not None:
            self.remove(old, "replaced")
        life = Life(row, now)
        self.jobs[life.id] = life
        self.places[life.state][life.id] = life
        self.gone.pop(life.id, None)
        self.realm.add(row, now)
        if row.key is not None:
            self.take_key(life, row.queue, row.key)

    def put(self, life: Life, state: JobState) -> None:
        """The job is in this state now."""
        self._end_span(life)
        del self.places[life.state][life.id]
        life.state = state
        self.places[state][life.id] = life
        self.realm.put(life, state)

    def finish(self, life: Life, state: JobState, now: int, reason: str) -> None:
        """The job has come to an end."""
        life.finished_at = now
        life.reason = reason
        life.cancel_requested = life.superseded = False
        self.ends.setdefault(life.id, []).append((state, life.result if state is JobState.COMPLETED else None))
        self.put(life, state)

    def sweep_away(self, life: Life, now: int) -> None:
        """The job's record has gone, but its key stays as long as it is held."""
        place = life.queue, life.key or ""
        holds = life.held(now) and self.keys.get(place) == life.id
        self.removals[(life.finished_at or 0) // HOUR, life.state.value, life.row.task, life.row.tenant] += 1
        self.remove(life, "swept")
        if holds:
            self.outlived[place] = life.id, life.held_until

    def remove(self, life: Life, how: str) -> None:
        """The job's record has gone."""
        self._end_span(life)
        self.realm.remove(life)
        del self.jobs[life.id]
        del self.places[life.state][life.id]
        self.drop_key(life)
        self.gone[life.id] = how

    def grant(self, life: Life, epoch: int, holder: str, until: int) -> None:
        """The job was leased."""
        if life.state is not JobState.RUNNING:
            self.put(life, JobState.RUNNING)
        life.epoch = epoch
        life.begun_before, life.begun = life.begun, True
        life.holder = holder
        life.node = self.node
        life.lease_until = until
        if (life.id, epoch) in self.epochs:
            self.blame("I6", life.id, f"epoch {epoch} was given out twice")
        self.epochs.add((life.id, epoch))
        self.spans[life.id, epoch, self.node] = Span(self.seq, life.lost)

    def _end_span(self, life: Life) -> None:
        span = self.spans.get((life.id, life.epoch, life.node))
        if span is not None:
            span.ended = self.seq
        life.holder = life.node = ""

    # -- keys

    def by_key(self, queue: str, key: str) -> Life | None:
        """The job that last took the key, if its record is still there."""
        job_id = self.keys.get((queue, key))
        return None if job_id is None else self.jobs.get(job_id)

    def key_holder(self, queue: str, key: str, now: int) -> JobId | None:
        """The job that keeps others from taking the key."""
        life = self.by_key(queue, key)
        if life is None:
            return self.outliving(queue, key, now)
        return life.id if life.state in LIVE or life.held(now) else None

    def outliving(self, queue: str, key: str, now: int) -> JobId | None:
        """The job whose record is gone, and that has the key all the same."""
        job_id, until = self.outlived.get((queue, key), (None, 0))
        return job_id if until > now else None

    def take_key(self, life: Life, queue: str, key: str) -> None:
        """The key leads to this job."""
        self.keys[queue, key] = life.id
        self.outlived.pop((queue, key), None)

    def drop_key(self, life: Life) -> None:
        """The key no longer leads to this job."""
        if life.key is not None and self.keys.get((life.queue, life.key)) == life.id:
            del self.keys[life.queue, life.key]

    def change_queue(self, life: Life, queue: str, now: int) -> None:
        """The job moves, with its key where that is free."""
        taken = life.key is not None and self.key_holder(queue, life.key, now) is not None
        self.drop_key(life)
        self.realm.move(life, queue)
        life.queue = queue
        if taken:
            life.key = None
        elif life.key is not None:
            self.take_key(life, queue, life.key)

    # -- views

    def waiting(self, queues: tuple[str, ...]) -> Iterator[Life]:
        """Available jobs of those queues that are neither paused nor governed, without jobs that wait to be called in
        their group."""
        wanted = {queue for queue in frozenset(queues) - self.paused if not self.realm.governs(queue)}
        available = self.places[JobState.AVAILABLE].values()
        return (life for life in available if life.queue in wanted and self.realm.has_turn(life))

    def claimable(self, req: Claim, now: int) -> list[Life]:
        """What a claim must choose from, in order."""
        bound = 2**31 if req.lost_below is None else req.lost_below
        found = (
            life
            for life in self.waiting(req.queues)
            if life.run_at <= now and not life.expired(now) and life.lost < bound
        )
        return sorted(found, key=lambda life: life.place)


def short(job_id: JobId) -> str:
    """The end of an id, for people."""
    return job_id.hex()[-8:]
