"""A small worker that uses the waist directly: a part of the simulation, and a yardstick for the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from headrace.errors import Unavailable
from headrace.seam.records import Beat, Claim, Claimed, JobId, Leased, Settlement
from headrace.testing.sim.cast.seat import Seat
from headrace.testing.sim.script import Act, wrapped
from headrace.types import JobState

T = TypeVar("T")
_TRIES = 6


async def scripted_worker(seat: Seat) -> None:
    """Claim, run, settle, beat and reap until told to stop."""
    await ScriptedWorker(seat).run()


class ScriptedWorker:
    """Claims as many jobs as it has free slots, runs each in a task, and settles each on its own."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.duty = seat.duty
        self.backend = seat.backend
        self.holder = f"{seat.node.name}:{seat.rng.getrandbits(64):016x}"
        self._held: dict[tuple[JobId, int], asyncio.Task[None]] = {}
        self._performing: set[tuple[JobId, int]] = set()
        self._since: dict[tuple[JobId, int], float] = {}
        self._asked_to_cancel: set[JobId] = set()
        self._wake = asyncio.Event()
        self._now = asyncio.get_running_loop().time

    async def run(self) -> None:
        """The worker's whole life."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._wake_on_stop()),
                group.create_task(self._listen()),
                group.create_task(self._every(self.duty.beat_every, self.beat)),
                group.create_task(self._every(self.duty.reap_every, self.reap)),
            ]
            await self._claim_until_stopped(group)
            await self._give_back()
            for task in tasks:
                task.cancel()
        await self._try(self.backend.renew, self._sign(leaving=True))

    # -- claiming

    async def _claim_until_stopped(self, group: asyncio.TaskGroup) -> None:
        while not self.seat.stop.is_set():
            self._wake.clear()
            asked = self.duty.slots - len(self._held)
            pause = self.duty.poll_every
            if asked > 0:
                sent_at = self._now()
                claimed = await self._try(self.backend.claim, self.request(asked))
                if claimed is None:
                    pause = self.seat.rng.randint(50_000, 500_000)
                else:
                    self._start(group, claimed, sent_at)
                    if len(claimed.jobs) == asked:
                        continue
                    pause = self.pause_after(claimed)
            await self.sleep(pause)

    def request(self, limit: int) -> Claim:
        """A claim for this many jobs."""
        lost_below = 1 if self.seat.rng.random() < 0.3 else None
        return Claim(self.holder, self.duty.queues, limit, self.duty.lease_for, self.duty.want, lost_below)

    def pause_after(self, claimed: Claimed) -> int:
        """How long to sleep, if nobody wakes us, after a claim that came back short."""
        return self.duty.poll_every if claimed.next_in is None else min(self.duty.poll_every, claimed.next_in)

    async def sleep(self, pause: int) -> None:
        """Wait until woken, but no longer than ``pause``."""
        try:
            async with asyncio.timeout(pause / 1e6):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _wake_on_stop(self) -> None:
        await self.seat.stop.wait()
        self._wake.set()

    async def _listen(self) -> None:
        if self.backend.hints is None:
            return
        topics = [f"queue:{queue}" for queue in self.duty.queues]
        async with self.backend.hints.listen([*topics, f"holder:{self.holder}"]) as hints:
            async for hint in hints:
                if hint.topic.startswith("holder:"):
                    await self.beat()
                else:
                    self._wake.set()

    # -- running

    def _start(self, group: asyncio.TaskGroup, claimed: Claimed, sent_at: float) -> None:
        for job in claimed.jobs:
            self._since[job.id, job.epoch] = sent_at
            self._held[job.id, job.epoch] = group.create_task(self._run(group, job))

    async def _run(self, group: asyncio.TaskGroup, job: Leased) -> None:
        try:
            settlement = await self._outcome(job)
            if settlement is not None:
                await self._settle(group, settlement)
        finally:
            self._held.pop((job.id, job.epoch), None)
            self._since.pop((job.id, job.epoch), None)
            self._asked_to_cancel.discard(job.id)
            self._wake.set()

    async def _outcome(self, job: Leased) -> Settlement | None:
        """What is to be recorded, or None: the lease ran out before the job could start, or was lost under way."""
        lease = (job.id, job.epoch)
        if self._now() >= self._since[lease] + self.duty.lease_for / 1e6:
            return None
        self._performing.add(lease)
        try:
            act = await self.seat.perform(job.id, job.epoch)
        except asyncio.CancelledError:
            if job.id in self._asked_to_cancel:
                return Settlement(job.id, job.epoch, self.holder, JobState.CANCELLED, reason="cancelled")
            if self.seat.stop.is_set():
                return Settlement(job.id, job.epoch, self.holder, JobState.AVAILABLE, delay=None, keep_lost=True)
            return None
        finally:
            self._performing.discard(lease)
        return self.settlement(job, act)

    def settlement(self, job: Leased, act: Act) -> Settlement:
        """The outcome as the store is to record it."""
        state = JobState.FAILED if act.failed and self.exhausted(job) else act.state
        return Settlement(
            job.id,
            job.epoch,
            self.holder,
            state,
            delay=act.delay,
            failed_attempt=act.failed,
            queue=act.queue,
            priority=act.priority,
            cells={n: None if body is None else wrapped(body) for n, body in act.cells.items()} if act.cells else None,
            error=f"error of epoch {job.epoch}".encode() if act.failed else None,
            reason="failed" if state is JobState.FAILED else "",
            result=act.result,
            result_ttl=act.result_ttl,
            keep=act.keep,
            spawn=act.spawn,
        )

    def exhausted(self, job: Leased) -> bool:
        """Whether this was the last attempt that the job is allowed."""
        return job.max_attempts is not None and job.attempt + 1 >= job.max_attempts

    async def _settle(self, group: asyncio.TaskGroup, settlement: Settlement) -> None:
        both = self.backend.finish_and_claim
        if self.duty.turns and both is not None and not self.seat.stop.is_set():
            sent_at = self._now()
            answer = await self._try(both, [settlement], self.request(1))
            if answer is not None:
                self._start(group, answer[1], sent_at)
                return
        await self._try(self.backend.finish, [settlement], tries=_TRIES)

    async def _give_back(self) -> None:
        """Let jobs that are nearly done finish; the others go back to their places."""
        until = self._now() + 0.5
        while self._performing and self._now() < until:
            await asyncio.sleep(0.05)
        for lease in sorted(self._performing):
            self._held[lease].cancel()
        while self._held:
            await asyncio.sleep(0.05)

    # -- duties

    async def _every(self, period: int, duty: Callable[[], Awaitable[object]]) -> None:
        while True:
            await asyncio.sleep(period * self.seat.rng.uniform(0.8, 1.2) / 1e6)
            await duty()

    async def reap(self) -> None:
        """Take back what vanished workers left."""
        await self._try(self.backend.reap, self.duty.reap)

    async def beat(self) -> None:
        """Give a sign of life, keep the leases that are past half their life, and do as the answer says."""
        beat, sent_at = self._sign(), self._now()
        renewed = await self._try(self.backend.renew, beat)
        if renewed is None:
            return
        lost, cancels = frozenset(renewed.lost), frozenset(renewed.cancels)
        for lease in beat.leases:
            if lease in self._since and lease not in lost:
                self._since[lease] = sent_at
        for lease in sorted(self._performing):
            if lease in lost:
                self._held[lease].cancel()
            elif lease[0] in cancels and lease[0] not in self._asked_to_cancel:
                self._asked_to_cancel.add(lease[0])
                self._held[lease].cancel()

    def _sign(self, *, leaving: bool = False) -> Beat:
        old = self._now() - self.duty.lease_for / 2e6
        leases = [lease for lease, since in self._since.items() if since <= old]
        return Beat(
            self.holder,
            self.seat.node.name,
            self.duty.queues,
            self.duty.lease_for,
            [] if leaving else leases,
            ttl=self.duty.lease_for,
            slots=self.duty.slots,
            busy=len(self._held),
            leaving=leaving,
            gap=self.duty.gap,
            at_work=self.duty.at_work,
        )

    async def _try(self, call: Callable[..., Awaitable[T]], *args: Any, tries: int = 1) -> T | None:
        """The answer, or None when the store cannot be reached in this many tries."""
        for number in range(tries):
            try:
                return await call(*args)
            except Unavailable:
                if number + 1 < tries:
                    await asyncio.sleep(self.seat.rng.uniform(0.05, 0.3) * (number + 1))
        return None
