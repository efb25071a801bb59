"""How far this client has claimed: where to start while the index is full of dead entries."""

from __future__ import annotations

from headrace.backends.postgres.arrays import Array, bigints, smallints, texts, uuids
from headrace.seam.records import Claimed, JobId

_SLACK = 2_000
_EVERY = 0.1
"""Seconds between looks from the beginning, at least; and at most a tenth of the time goes into them."""
_SHARE = 10.0

Marks = tuple[Array | None, Array | None, Array | None, Array | None, int | None]
NOTHING: Marks = (None, None, None, None, None)


class Way:
    """The way through the index of waiting jobs.

    Claimed jobs leave entries there, which go away once no transaction can see them. While somebody holds an old
    snapshot they stay, and every claim from the beginning walks over all of them. The same holds where delayed jobs
    wait. So after a claim that walked much too far, the next ones start behind the last job claimed of each queue, and
    behind the last time at which everything due was promoted. Now and then one starts from the beginning, for jobs
    that came in before the mark. These wait that long, and no longer.
    """

    def __init__(self) -> None:
        self._marks: dict[str, tuple[int, int, JobId]] = {}
        self._due: int | None = None
        self._littered = False
        self._look_at = 0.0

    def marks(self, now: float) -> Marks:
        """The marks for a claim at this time: none for one that is to start from the beginning."""
        if not self._littered or now >= self._look_at or not (self._marks or self._due):
            return NOTHING
        spots = self._marks.values()
        return (
            texts(list(self._marks)),
            smallints([priority for priority, _, _ in spots]),
            bigints([run_at for _, run_at, _ in spots]),
            uuids([job_id for _, _, job_id in spots]),
            self._due,
        )

    def walked(self, entries: int, claimed: Claimed, due: int | None, marks: Marks, began: float, ended: float) -> None:
        """What a claim with these marks has met; all that was ``due`` by then has been promoted."""
        if marks is NOTHING:
            self._littered = entries > 4 * len(claimed.jobs) + _SLACK
            self._look_at = ended + max(_EVERY, _SHARE * (ended - began))
            if not self._littered:
                self._marks.clear()
                self._due = None
        if self._littered:
            self._due = due or self._due
            for job in claimed.jobs:
                self._marks[job.queue] = (job.priority, job.run_at, job.id)

    def patience(self, next_in: int | None, now: float) -> int | None:
        """When to claim next: no later than the next look from the beginning."""
        if not self._littered:
            return next_in
        wait = max(0, int((self._look_at - now) * 1e6))
        return wait if next_in is None else min(wait, next_in)
