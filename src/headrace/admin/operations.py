"""Bulk operations: one action on all jobs that a filter finds, done in the background by a job of its own.

The job is in a queue of its own. Its ``vm_state`` has the progress: whoever continues it, after a crash too, goes on
where it was last kept. It goes from the newest job to the oldest, so jobs that come later are not met.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headrace.admin.actions import change_of
from headrace.admin.filters import parse_filter
from headrace.admin.redaction import Redaction
from headrace.admin.search import search
from headrace.api.app import App
from headrace.api.client import Client
from headrace.core.validation import AnyId, raw_id
from headrace.core.view import View
from headrace.errors import JobNotFound, PayloadError
from headrace.payloads.codec import Envelope
from headrace.seam import records as r
from headrace.seam.instants import datetime_or_none
from headrace.seam.policy import OPERATIONS
from headrace.types import Again, Done, JobState, NewJob, Outcome, Patch, Sections
from headrace.worker.failures import failures
from headrace.worker.job import Job
from headrace.worker.retry import persistent

QUEUE = OPERATIONS
TASK = "headrace.operation"
PACE = 2_000
"""Jobs a second that an operation changes at most, so that it floods nobody."""
_STEP = 200
_STRETCH = 2.0
"""Seconds after which an operation keeps its progress."""
_KEPT = "7d"


class Progress(Struct, frozen=True):
    """How far an operation has come."""

    met: int = 0
    changed: int = 0
    after: str | None = None
    """Where the search goes on."""


class Operation(View, frozen=True):
    """A bulk operation, and how far it has come.

    >>> Operation("7", "state:dead", "requeue", "ada", JobState.RUNNING, 10).met
    0
    """

    id: str
    filter: str
    action: str
    actor: str
    state: JobState
    expected: int
    """How many jobs matched when it was submitted; 10,000 may stand for more."""
    met: int = 0
    changed: int = 0
    """The others were refused: their state does not take the change, or their key is taken by now."""
    argument: str | None = None
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error: str = ""
    """What went wrong last; nothing once it has completed."""


class Submitted(Struct, frozen=True):
    """What an operation is asked to do: the arguments of its job."""

    filter: str
    action: str
    actor: str
    expected: int
    argument: str | None = None
    pace: int = PACE
    redaction: Redaction = Redaction.NOTHING
    """What whoever asked may see: the filter means the jobs that it found for them."""


def operation_job(given: Submitted) -> NewJob:
    """The job that does it. Raises ``ConfigError`` if the filter or the action is wrong."""
    parse_filter(given.filter, given.redaction)
    change_of(given.action, given.argument)
    args: dict[str, Any] = msgspec.to_builtins(given)
    return NewJob(task=TASK, queue=QUEUE, args=args, result_ttl=_KEPT, priority=-1)


async def find_operation(client: Client, op_id: AnyId) -> Operation:
    """An operation by its id. Raises ``JobNotFound``."""
    record = await client.fetch(raw_id(op_id))
    if record is None or record.task != TASK:
        raise JobNotFound(
            f"no operation {UUID(bytes=raw_id(op_id))}: it never existed, or its record is past retention"
        )
    return _view(client, record)


async def list_operations(client: Client, limit: int = 50) -> list[Operation]:
    """Operations, newest first."""
    found = await search(client, parse_filter(f"queue:{QUEUE} task:{TASK}"), None, limit)
    backend = await client.backend()
    want = frozenset({"parameters", "vm_state", "error"})
    records = await backend.fetch([one.id for one in found.records], want, client.clock.stamp())
    return [_view(client, record) for record in records if record is not None]


def _view(client: Client, record: r.Record) -> Operation:
    envelope = client.packer.envelope
    args = envelope.readable(record.cells.get("parameters"), "parameters", record.id, record.tenant)
    given = msgspec.convert(args, Submitted) if isinstance(args, dict) else Submitted("?", "?", "?", 0)
    done = _progress(_state(envelope, record))
    told = failures(record.error)
    return Operation(
        str(UUID(bytes=record.id)),
        given.filter,
        given.action,
        given.actor,
        record.state,
        given.expected,
        done.met,
        done.changed,
        given.argument,
        datetime_or_none(record.enqueued_at),
        datetime_or_none(record.started_at),
        datetime_or_none(record.finished_at),
        told[-1].message if told and record.state is not JobState.COMPLETED else "",
    )


def _state(envelope: Envelope, record: r.Record) -> bytes | None:
    cell = record.cells.get("vm_state")
    try:
        return None if cell is None else envelope.unwrap(cell, "vm_state", record.id, record.tenant)[1]
    except PayloadError:
        return None


def _progress(kept: bytes | None) -> Progress:
    try:
        return Progress() if kept is None else msgspec.json.decode(kept, type=Progress)
    except msgspec.DecodeError:
        return Progress()


class Operator:
    """Carries operations out."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def app(self) -> App:
        """An app whose worker does nothing else. It leaves the duties to other workers."""
        self._client.guest = True
        app = App(self._client)
        retry = persistent()

        @app.task(name=TASK, queue=QUEUE, retry=retry, result_ttl=_KEPT)
        async def operation(
            job: Job[Any],
            filter: str,
            action: str,
            actor: str,
            expected: int,
            argument: str | None = None,
            pace: int = PACE,
            redaction: Redaction = Redaction.NOTHING,
        ) -> Outcome:
            return await self._go_on(job, Submitted(filter, action, actor, expected, argument, pace, redaction))

        return app

    async def _go_on(self, job: Job[Any], given: Submitted) -> Outcome:
        """Go on for a while, then keep the progress."""
        loop = asyncio.get_running_loop()
        ends, progress = loop.time() + _STRETCH, _progress(await job.load("vm_state"))
        while True:
            began = loop.time()
            progress, more = await self._step(given, progress)
            kept = Patch(sections=Sections(vm_state=msgspec.json.encode(progress)))
            if not more:
                return Done({"met": progress.met, "changed": progress.changed}, patch=kept)
            if loop.time() > ends:
                return Again(0, patch=kept)
            await asyncio.sleep(max(0.0, began + _STEP / max(1, given.pace) - loop.time()))

    async def _step(self, given: Submitted, progress: Progress) -> tuple[Progress, bool]:
        wanted = parse_filter(given.filter, given.redaction)
        found = await search(self._client, wanted, progress.after, _STEP)
        ids = [one.id for one in found.records if one.queue != QUEUE]
        altered: list[r.Altered] = []
        if ids:
            selected = r.Selector(ids=ids, states=wanted.selector.states)
            altered = await self._client.alter(selected, change_of(given.action, given.argument))
        changed = progress.changed + sum(one.changed for one in altered)
        return Progress(progress.met + len(ids), changed, found.after), found.after is not None


def operator_client(client: Client) -> Client:
    """Another client of the same store, for the worker of operations."""
    operator = client.sibling()
    worker = operator.settings.worker
    operator.settings = replace(operator.settings, worker=replace(worker, concurrency=2, name="operations"))
    return operator
