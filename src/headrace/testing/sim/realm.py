"""The rules of queues, and which jobs of groups are called, as the answers so far say."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from headrace.seam.policy import Policy, QueuePause, TenantLimit
from headrace.seam.records import Claim, Claimed, JobId, Row
from headrace.testing.referee import Law, Referee
from headrace.testing.referee.job import Job
from headrace.testing.sim.life import Life
from headrace.types import JobState

Blame = Callable[[str, JobId | None, str], None]

_BROKEN = {
    Law.LIMITS: "I11",
    Law.TURNS: "I12",
    Law.ORDER: "I8",
    Law.GROUPS: "I27",
    Law.DEPTH: "I21",
    Law.LEASES: "I6",
}


class Realm:
    """A referee for each queue. The ledger keeps it informed about jobs, so that it judges claims only."""

    def __init__(self, lives: Mapping[JobId, Life], blame: Blame) -> None:
        self._lives = lives
        self._blame = blame
        self._referees: dict[str, Referee] = {}
        self.versions: dict[str, int] = {}
        """Of the policies."""

    def of(self, queue: str) -> Referee:
        """The referee of a queue."""
        known = self._referees.get(queue)
        if known is None:
            known = self._referees[queue] = Referee(queue, lambda law, job, text: self._blame(_BROKEN[law], job, text))
        return known

    def governs(self, queue: str) -> bool:
        """Whether tenants take turns there."""
        return queue in self._referees and self._referees[queue].governed

    def has_turn(self, life: Life) -> bool:
        """Whether the job need not wait for others of its group."""
        return life.row.group is None or life.id in self.of(life.queue).book.called

    # -- rules

    def save(self, policy: Policy) -> bool:
        """Somebody saves a policy; whether that must be done."""
        if policy.version != self.versions.get(policy.queue, 0):
            return False
        self.versions[policy.queue] = policy.version + 1
        self.of(policy.queue).save(replace(policy, version=policy.version + 1))
        return True

    def limit(self, limit: TenantLimit) -> None:
        """A tenant has a limit of its own, or none any more."""
        self.of(limit.queue).limit(limit)

    def pause(self, pause: QueuePause, now: int) -> None:
        """A queue, a tenant or a task was paused or resumed."""
        self.of(pause.queue).pause(pause, now)

    # -- jobs

    def add(self, row: Row, now: int) -> None:
        """A job was accepted."""
        self.of(row.queue).book.add(Job(row, now))

    def put(self, life: Life, state: JobState) -> None:
        """The job is in this state now; :meth:`claim` notes which jobs run."""
        book = self.of(life.queue).book
        if state is not JobState.RUNNING and (job := book.jobs.get(life.id)) is not None:
            job.begun = life.begun
            book.put(job, state, life.run_at)

    def remove(self, life: Life) -> None:
        """The job's record has gone."""
        book = self.of(life.queue).book
        if (job := book.jobs.get(life.id)) is not None:
            book.remove(job)

    def move(self, life: Life, queue: str) -> None:
        """The job goes to another queue."""
        book = self.of(life.queue).book
        if (job := book.jobs.get(life.id)) is not None:
            book.remove(job)
            self.of(queue).book.add(job)

    def claim(self, req: Claim, claimed: Claimed, now: int) -> set[JobId]:
        """A claim was answered. Returns the jobs that it need not have met, as another of their group expired
        meanwhile."""
        late: set[JobId] = set()
        for queue in dict.fromkeys((*req.queues, *(job.queue for job in claimed.jobs))):
            referee = self.of(queue)
            for job in referee.book.jobs.values():
                life = self._lives[job.id]
                job.priority, job.lost, job.expires_at = life.priority, life.lost, life.expires_at
            late |= referee.claim(req, claimed, now)
        return late
