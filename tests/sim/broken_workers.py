"""Workers and producers with one bug each."""

from __future__ import annotations

from headrace.errors import Unavailable
from headrace.seam.records import Claimed, Inserted, Leased, Row, Settlement
from headrace.testing.sim.cast.producer import Producer
from headrace.testing.sim.cast.seat import Seat
from headrace.testing.sim.cast.worker import ScriptedWorker
from headrace.testing.sim.world import make_id
from headrace.types import JobState


class HintsOnly(ScriptedWorker):
    """Sleeps until it is woken, and nobody promised to wake it."""

    def pause_after(self, claimed: Claimed) -> int:
        return 3_600_000_000


class NeverReaps(ScriptedWorker):
    async def reap(self) -> None:
        pass


class NeverGivesUp(ScriptedWorker):
    """Tries again after the last attempt."""

    def exhausted(self, job: Leased) -> bool:
        return False


class RunsAgainWhenUnsure(ScriptedWorker):
    """Takes a lost answer to its settlement for a reason to run the job once more under the old lease."""

    async def _settle(self, group: object, settlement: Settlement) -> None:
        try:
            await self.backend.finish([settlement])
        except Unavailable:
            await self.seat.perform(settlement.id, settlement.epoch)


class AcksEarly(ScriptedWorker):
    """Records the job as done, then does it."""

    async def _outcome(self, job: Leased) -> Settlement | None:
        done = Settlement(job.id, job.epoch, self.holder, JobState.COMPLETED)
        await self._try(self.backend.finish, [done])
        return await super()._outcome(job)


class GuessesTheEpoch(ScriptedWorker):
    """Starts what it finds in the answer to a beat, without a claim."""

    async def beat(self) -> None:
        await super().beat()
        for job_id, epoch in list(self._since)[:1]:
            await self.seat.perform(job_id, epoch + 1)


class NewIdOnRetry(Producer):
    """Repeats a request under a new id, so that nobody can know it for the same."""

    async def enqueue(self, rows: list[Row]) -> list[Inserted] | None:
        self._world.known += [row.id for row in rows]
        for _ in range(8):
            try:
                return await self._backend.insert(rows)
            except Unavailable:
                rows = [
                    Row(make_id(self._clock, self._rng), row.queue, row.task, row.cells, headers=row.headers)
                    for row in rows
                ]
        return None


def main_of(worker: type[ScriptedWorker]):  # type: ignore[no-untyped-def]
    """The worker as the simulation wants it."""

    async def main(seat: Seat) -> None:
        await worker(seat).run()

    return main
