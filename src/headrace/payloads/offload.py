"""Packs and unpacks large values in a thread, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.payloads.codec import Envelope, Serde
from headrace.seam.records import Cells

T = TypeVar("T")

LARGE = 65_536
"""Above this many bytes, the way to another thread and back pays off."""


def any_large(cells: Cells) -> bool:
    """Whether one of these cells should be opened in a thread."""
    for cell in cells.values():  # noqa: SIM110  asked for every job, and any() takes twice as long
        if len(cell) > LARGE:
            return True
    return False


Wrap = Callable[[Envelope, bytes, int, str], Awaitable[bytes]]


async def wrap(envelope: Envelope, body: bytes, kind: int, what: str) -> bytes:
    """``envelope.wrap``, in a thread if the body is large."""
    if len(body) <= LARGE:
        return envelope.wrap(body, kind, what)
    return await asyncio.to_thread(envelope.wrap, body, kind, what)


async def wrap_here(envelope: Envelope, body: bytes, kind: int, what: str) -> bytes:
    """``envelope.wrap``, however large the body."""
    return envelope.wrap(body, kind, what)


async def decode_result(envelope: Envelope, cell: bytes | None, serde: Serde[T], job_id: bytes) -> T:
    """The result of a job, decoded in a thread if the cell is large."""
    if cell is None or len(cell) <= LARGE:
        return envelope.decode(cell, serde, "result", job_id)
    return await asyncio.to_thread(envelope.decode, cell, serde, "result", job_id)
