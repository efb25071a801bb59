"""Parts: what running jobs send ahead of their result, for those who wait for it.

They are kept apart from jobs and for a while only. Nothing else depends on them: like hints, they may be lost when the
store crashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from headrace.seam.records import JobId, Stamp

KEPT = 1_000
"""Parts that are kept of a job: the latest."""
LARGEST = 16_384
"""Bytes that a part may have."""
KEEP = 3_600_000_000
"""Microseconds for which a part is kept, at least."""


class Part(Struct, frozen=True):
    """One part."""

    job: JobId
    epoch: int
    """That of the run that sent it."""
    number: int
    """From 1 on, in every run."""
    body: bytes


def inbox_of(job_id: JobId) -> str:
    """The inbox in which to hear of the parts of a job."""
    return job_id.hex()


class PartStore(Protocol):
    """What holds for the ten operations holds here too, except that parts need not be durable."""

    async def send(self, batch: Sequence[Part], at: Stamp = None) -> None:
        """Keep parts, each if it comes after the last one that is kept of its job, by ``(epoch, number)``. So what is
        repeated changes nothing, and a run that has lost its lease cannot mix its parts into those of the next.

        Of each job the latest ``KEPT`` parts of its latest run are kept, each for ``KEEP`` at least. Whoever listens to
        the inbox of the job (``inbox_of``) gets a hint.
        """

    async def read(self, job_id: JobId, after: tuple[int, int], limit: int = 100, at: Stamp = None) -> list[Part]:
        """Parts of a job after this ``(epoch, number)``, in order."""
