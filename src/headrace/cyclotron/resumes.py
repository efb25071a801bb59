"""Jobs that were to be resumed while they ran: that is remembered until they pause.

The note of it is a job, with the id of the other one as its key: of several notes for one job, the first counts.
"""

from __future__ import annotations

from uuid import UUID

from headrace.api.client import Client
from headrace.cyclotron.fields import OURS
from headrace.seam.records import Resume, Selector
from headrace.types import Duration, JobState, NewJob
from headrace.worker.pull import Pull
from headrace.worker.pulled_job import PulledJob

_QUEUE = f"{OURS}resumes"
_KEEP = "7d"


async def remember(client: Client, job_id: UUID) -> None:
    """Note that the job is to be resumed once it pauses."""
    await client.enqueue(NewJob(task="cyclotron.resume", queue=_QUEUE, key=str(job_id), expires=_KEEP))


class Resumes:
    """Carries out what was noted."""

    def __init__(self, client: Client, every: Duration) -> None:
        self._client = client
        self._every = every
        self._pull: Pull = client.pull(_QUEUE, want=(), upkeep=False)

    async def run(self) -> int:
        """Look at all notes once; returns how many jobs were resumed."""
        resumed = 0
        while notes := await self._pull.take(wait=0):
            for note in notes:
                resumed += await self._apply(note)
        return resumed

    async def close(self) -> None:
        """Give back what is held."""
        await self._pull.close()

    async def _apply(self, note: PulledJob) -> bool:
        ids = [UUID(note.key or "").bytes]
        altered = await self._client.alter(Selector(ids=ids), Resume())
        job = altered[0] if altered else None
        waits = job is not None and not job.changed and job.before in (JobState.AVAILABLE, JobState.RUNNING)
        note.set_state(JobState.AVAILABLE if waits else JobState.COMPLETED)
        if waits:
            note.set_delay(self._every)
        note.release()
        return job is not None and job.changed
