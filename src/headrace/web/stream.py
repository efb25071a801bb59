"""What happens, as it happens: server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from headrace.admin.listening import Listening
from headrace.core.feed import Digest
from headrace.web.guard import problem

_MOST = 100
"""Streams at a time."""
_QUIET = 10.0
"""Seconds after which a stream says that it is still there."""


class Stream:
    """The route of the stream."""

    def __init__(self, listening: Listening) -> None:
        self._listening = listening
        self._open = 0

    async def events(self, request: Request) -> Response:
        if self._open >= _MOST:
            return problem(503, f"{_MOST} streams are open already")
        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(self._told(), media_type="text/event-stream", headers=headers)

    async def _told(self) -> AsyncIterator[bytes]:
        self._open += 1
        try:
            async with self._listening.listen() as heard:
                yield b": listening\n\n"
                coming = asyncio.ensure_future(_next(heard))
                try:
                    while True:
                        done, _ = await asyncio.wait([coming], timeout=_QUIET)
                        if not done:
                            yield b": quiet\n\n"
                            continue
                        if (digest := coming.result()) is None:
                            return
                        yield b"event: digest\ndata: " + msgspec.json.encode(plain(digest)) + b"\n\n"
                        coming = asyncio.ensure_future(_next(heard))
                finally:
                    coming.cancel()
        finally:
            self._open -= 1


async def _next(heard: AsyncIterator[Digest]) -> Digest | None:
    """None: the server ends."""
    return await anext(heard, None)


def plain(digest: Digest) -> dict[str, Any]:
    """A digest as plain data, with names."""
    return {
        "source": digest.source,
        "at": digest.at / 1e6,
        "tallies": [
            {"queue": one.queue, "task": one.task, "what": one.what, "count": one.count, "last": _id(one.last)}
            for one in digest.tallies
        ],
        "happenings": [
            {name: getattr(one, name) for name in one.__struct_fields__ if name not in ("id", "at")}
            | {"id": _id(one.id), "at": one.at / 1e6}
            for one in digest.happenings
        ],
        "dropped": digest.dropped,
        "worker": digest.worker,
        "lag": digest.lag,
        "timings": [{"queue": one.queue, "ran": one.ran, "waited": one.waited} for one in digest.timings],
    }


def _id(raw: bytes) -> str | None:
    return str(UUID(bytes=raw)) if len(raw) == 16 else None
