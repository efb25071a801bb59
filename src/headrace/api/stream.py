"""What a job sends before it has ended, as somebody who waits for it reads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

from msgspec import Struct

from headrace.api.client import AnyId, Client
from headrace.core.listener import listen
from headrace.core.tasks import Tasks
from headrace.core.validation import raw_id
from headrace.errors import ConfigError, JobError, Unavailable
from headrace.payloads.codec import JsonSerde
from headrace.seam.parts import Part as StoredPart
from headrace.seam.parts import PartStore, inbox_of
from headrace.seam.protocol import Backend
from headrace.seam.records import JobId, Record

_ANY = JsonSerde[Any]()
_POLL = 1.0
_POLL_BLIND = 0.1


class Part(Struct, frozen=True):
    """Something that a job has sent while it runs.

    >>> from headrace import Part
    >>> def begins_again(part: Part) -> bool:
    ...     return part.number == 1
    """

    value: Any
    number: int
    """From 1 on. If the job runs again, it begins again; where numbers are left out, parts were lost."""
    run: int
    """The epoch of the lease under which it was sent: another one for each run."""


_BEGINNING = 0, 0


async def next_parts(client: Client, job_id: AnyId, after: tuple[int, int]) -> list[Part]:
    """The parts of a job that come after this run and number, as soon as there are some; none: the job has ended."""
    async with aclosing(parts_of(client, job_id, after)) as parts:
        async for first in parts:
            rest = await _store(await client.backend()).read(raw_id(job_id), (first.run, first.number))
            return [first, *(_opened(client, one) for one in rest)]
    return []


async def parts_of(client: Client, job_id: AnyId, after: tuple[int, int] = _BEGINNING) -> AsyncGenerator[Part]:
    """The parts of a job, from the first that is kept until the job has ended."""
    raw = raw_id(job_id)
    backend = await client.backend()
    store = _store(backend)
    news, tasks = asyncio.Event(), Tasks()
    ended = asyncio.ensure_future(client.wait(raw, None))
    ended.add_done_callback(lambda _: news.set())
    if backend.hints is not None:
        topics = [f"inbox:{inbox_of(raw)}"]
        tasks.start(listen(backend.hints, topics, lambda _: news.set(), client.rng, news.set), "headrace-stream")
    pause = _POLL_BLIND if backend.hints is None else _POLL
    try:
        while True:
            news.clear()
            over = ended.done()
            while found := await _read(store, raw, after, over):
                for one in found:
                    after = one.epoch, one.number
                    yield _opened(client, one)
            if over:
                _check(ended)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await news.wait()
    finally:
        ended.cancel()
        await tasks.close()


def _store(backend: Backend) -> PartStore:
    if backend.parts is None:
        raise ConfigError("this store keeps no parts of results; wait for the result instead")
    return backend.parts


def _opened(client: Client, part: StoredPart) -> Part:
    return Part(client.packer.envelope.decode(part.body, _ANY, "result", part.job), part.number, part.epoch)


async def _read(parts: PartStore, job_id: JobId, after: tuple[int, int], over: bool) -> list[StoredPart]:
    """While the job has not ended, a store that is away is asked again; the wait for the end has the patience."""
    try:
        return await parts.read(job_id, after)
    except Unavailable:
        if over:
            raise
        return []


def _check(ended: asyncio.Future[Record]) -> None:
    """However the job ended, its parts are read. Only a wait that failed is an error."""
    error = ended.exception()
    if error is not None and not isinstance(error, JobError):
        raise error
