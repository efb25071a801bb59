"""The real worker in a seat of the simulation."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.core.config import Keep, PayloadSettings, RetentionSettings, Settings, WorkerSettings
from headrace.core.events import Observers
from headrace.core.ids import IdMaker
from headrace.payloads.codec import RawSerde
from headrace.payloads.pack import Packer
from headrace.seam.records import Leased
from headrace.testing.sim.cast.core_client import new_job
from headrace.testing.sim.cast.planning import PLANNER
from headrace.testing.sim.cast.seat import Duty, Seat
from headrace.testing.sim.script import TASKS, Act
from headrace.types import Again, Done, Fail, JobState, Outcome, Patch, Retry, Sections
from headrace.worker.exchange import Exchange
from headrace.worker.handler import Handler
from headrace.worker.job import Job
from headrace.worker.retry import exponential
from headrace.worker.worker import Worker


async def core_worker(seat: Seat) -> None:
    """``headrace.worker.worker.Worker``, its heartbeat on the same loop, until the seat says stop."""
    packer = Packer(PayloadSettings(), seat.backend.limits, IdMaker(seat.clock, seat.rng))
    exchange = Exchange(
        seat.backend,
        seat.duty.queues,
        settings_for(seat.duty, seat.node.name),
        packer,
        clock=seat.clock,
        rng=seat.rng,
        observers=Observers(),
        heartbeat_thread=False,
    )
    worker = Worker(exchange, {task: _handler(task, seat) for task in TASKS})
    async with asyncio.TaskGroup() as group:
        stopping = group.create_task(_stop(seat, worker))
        await worker.run()
        stopping.cancel()


def settings_for(duty: Duty, name: str) -> Settings:
    """The duty in the words of the worker's own settings."""
    keep = Keep(age="8s")
    return Settings(
        worker=WorkerSettings(
            concurrency=duty.slots,
            lease=duty.lease_for / 1e6,
            poll=duty.poll_every / 1e6,
            reap=duty.reap_every / 1e6,
            max_lost=duty.reap.max_lost,
            grace=0.5,
            name=name,
        ),
        retention=RetentionSettings(every="4s", completed=keep, cancelled=keep, failed=keep),
        planner=PLANNER,
    )


def outcome(act: Act) -> Outcome:
    """The act as a handler would return it. A job cannot pause itself or keep its place: it comes again instead."""
    patch = Patch(act.queue, act.priority, Sections(**(act.cells or {})))
    spawn = [new_job(row) for row in act.spawn]
    match act.state:
        case JobState.COMPLETED:
            return Done(act.result or b"", act.result_ttl / 1e6, patch, spawn)
        case JobState.FAILED:
            return Fail("scripted", patch=patch, spawn=spawn)
        case _ if act.failed:
            return Retry((act.delay or 0) / 1e6, "scripted", patch, spawn)
        case _:
            return Again((act.delay or 0) / 1e6, patch, spawn)


def _handler(task: str, seat: Seat) -> Handler:
    async def call(job: Job[Any]) -> Outcome:
        return outcome(await seat.perform(job.id.bytes, job.lease.epoch))

    return Handler(
        task=task, load=_load, retry=exponential(4, base="1s"), result_serde=RawSerde(), result_ttl=0, call=call
    )


def _load(leased: Leased) -> None:
    """Scripted jobs need no arguments."""


async def _stop(seat: Seat, worker: Worker) -> None:
    await seat.stop.wait()
    worker.stop()
