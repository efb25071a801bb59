"""What the worker does in the demo, and what to expect. A step returns what to show, or raises ``Unmet``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import ModuleType

from headrace import Handle, JobInfo, JobState, TickInfo
from headrace.errors import JobFailed, JobNotFound, ScheduleNotFound
from headrace.seam.records import JobKey

PATIENCE = 15.0
"""Seconds after which a step has failed."""
PAGES = ("headrace", "tailrace", "spillway")
LETTERS = 40

Step = Callable[[], Awaitable[str]]


class Unmet(Exception):
    """A step did not go as expected."""


class Steps:
    """The steps, on the tasks of one project. ``run`` makes the names of this run unique, and ``kill`` kills the worker
    of that name."""

    def __init__(self, project: ModuleType, run: str, kill: Callable[[str], None]) -> None:
        self._project = project
        self._run = run
        self._kill = kill
        self.dead_letter = ""
        """The id of the job that failed for good."""

    def __iter__(self) -> Iterator[tuple[str, Step]]:
        steps = (
            self.pipeline,
            self.retry,
            self.delay,
            self.call,
            self.batch,
            self.killed,
            self.schedule,
            self.limit,
            self.why,
            self.dead,
        )
        for step in steps:
            yield (step.__doc__ or "").strip().rstrip("."), step

    async def pipeline(self) -> str:
        """Three pages through fetch, parse and summarise."""
        for page in PAGES:
            await self._project.fetch.enqueue(page, self._key(page))
        summaries = [await self._result_of(JobKey("pages", self._key(page))) for page in PAGES]
        for page, summary in zip(PAGES, summaries, strict=True):
            _expect(str(summary).startswith(f"{page} is about "), f"a summary of {page}, got {summary!r}")
        return str(summaries[0])

    async def retry(self) -> str:
        """A job that fails twice and then succeeds."""
        handle = await self._project.unsteady.enqueue("the weather service")
        result, info = await handle.result(PATIENCE), await handle.info()
        _expect(info.attempt == 2, f"two failed attempts, got {info.attempt}")
        return str(result)

    async def delay(self) -> str:
        """A job that waits for two seconds."""
        handle = await self._project.remind.options(delay="2s").enqueue("the milk")
        await handle.result(PATIENCE)
        waited = _lasted(await handle.info())
        _expect(waited >= timedelta(seconds=2), f"at least 2 s, got {waited}")
        return f"ran after {waited.total_seconds():.2f} s"

    async def call(self) -> str:
        """A request to the worker, and its response."""
        answer = await self._project.add.options(wait=PATIENCE).call(2, 3)
        _expect(answer == 5, f"2 + 3 = 5, got {answer!r}")
        return f"2 + 3 = {answer}"

    async def batch(self) -> str:
        """Forty letters, many at a time."""
        letters = [self._project.send.job(f"letter {number}") for number in range(LETTERS)]
        handles: list[Handle[int]] = await self._project.app.enqueue_many(letters)
        sizes = await asyncio.gather(*(handle.result(PATIENCE) for handle in handles))
        _expect(len(sizes) == LETTERS and max(sizes) > 1, f"{LETTERS} letters in batches, got {sizes}")
        return f"{len(sizes)} sent, up to {max(sizes)} in one call"

    async def killed(self) -> str:
        """A worker is killed in the middle of a job, and another one does it."""
        handle = await self._project.film.enqueue("The Mill")
        async with asyncio.timeout(PATIENCE):
            while not (victim := (await handle.info()).worker):
                await asyncio.sleep(0.05)
        self._kill(victim)
        result, info = await handle.result(2 * PATIENCE), await handle.info()
        _expect(info.finished_at is not None, f"that another worker does it, got {info}")
        return f"{result}, {_lasted(info).total_seconds():.1f} s after its enqueue; worker {victim!r} was killed"

    async def schedule(self) -> str:
        """A schedule that fires every two seconds."""
        began = datetime.now(UTC)
        async with asyncio.timeout(2 * PATIENCE):
            while len(done := await self._chimes(began)) < 2:
                await asyncio.sleep(0.2)
        last, before = (tick.slot for tick in done[:2])
        apart = (last - before).total_seconds()
        _expect(apart > 0 and apart % 2 == 0, f"slots every two seconds, got {before} and {last}")
        return f"slots at {before.astimezone():%H:%M:%S} and {last.astimezone():%H:%M:%S}, one job each"

    async def _chimes(self, since: datetime) -> list[TickInfo]:
        """The slots since then whose jobs have completed, the latest first. Others are planned ahead."""
        try:
            found = await self._project.app.schedules.history("chime", limit=100)
        except ScheduleNotFound:
            return []
        return [tick for tick in found if tick.state == "completed" and tick.slot > since]

    async def limit(self) -> str:
        """Twelve requests to a service that takes two at a time."""
        app = self._project.app
        await app.policies.set("api", running=2)
        handles = await app.enqueue_many(self._project.request.job(number) for number in range(12))
        times = await asyncio.gather(*(handle.result(2 * PATIENCE) for handle in handles))
        most = max(sum(began <= moment < ended for began, ended in times) for moment, _ in times)
        _expect(most <= 2, f"two at a time, got {most}")
        return f"never more than {most} at once, over all workers"

    async def why(self) -> str:
        """Why a job is not running, in one sentence."""
        handle = await self._project.remind.options(queue="elsewhere", key=f"{self._run}:why").enqueue("me")
        why = await self._project.app.why(handle.id)
        _expect(why.code == "no_worker", f"that no worker listens to queue 'elsewhere', got {why}")
        await handle.cancel()
        return why.sentence

    async def dead(self) -> str:
        """A job that never succeeds becomes a dead letter."""
        handle = await self._project.broken.enqueue(7)
        self.dead_letter = str(handle.id)
        try:
            await handle.result(PATIENCE)
        except JobFailed as error:
            info = await handle.info()
            _expect(info.state is JobState.FAILED and len(info.failures) == 2, f"two failures, got {info.failures}")
            return f"{error.reason}: {info.failures[-1].message}"
        raise Unmet("expected a failure, got a result")

    def _key(self, page: str) -> str:
        return f"{self._run}:{page}"

    async def _result_of(self, name: JobKey) -> object:
        """The result of a job that another job spawns."""
        app = self._project.app
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    info = await app.get(name)
                    break
                except JobNotFound:
                    await asyncio.sleep(0.05)
        await app.client.wait(info.id, PATIENCE)
        return (await app.get(name)).result


def _expect(held: bool, what: str) -> None:
    if not held:
        raise Unmet(f"expected {what}")


def _lasted(info: JobInfo) -> timedelta:
    if info.finished_at is None or info.enqueued_at is None:
        raise Unmet("expected a job that has ended")
    return info.finished_at - info.enqueued_at
