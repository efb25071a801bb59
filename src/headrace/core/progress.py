"""How far a job has come, as its handler says."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import msgspec
from msgspec import Struct

from headrace.seam.records import PROGRESS
from headrace.text import shown

_LONGEST = 200
"""Characters of a note; a longer one is cut. So whatever they are, it fits into what a store takes."""


class Progress(Struct, frozen=True):
    """How far a job has come: ``done`` from 0 to 1, or None if nobody knows, and a ``note``.

    >>> from headrace import Progress
    >>> print(Progress(0.4, "rows read"))
    40 %, rows read
    """

    done: float | None = None
    note: str = ""

    def __str__(self) -> str:
        share = "" if self.done is None else f"{math.floor(self.done * 100)} %"
        return ", ".join(filter(None, (share, self.note)))


class Noted:
    """What saying the progress returns. Nothing waits for anything, so it may be awaited or not."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


NOTED = Noted()


def check_progress(done: object, note: object) -> Progress:
    """The progress that a handler says. Raises ``ValueError``."""
    if not isinstance(note, str):
        raise ValueError(f"note: expected text, got {shown(note)}")
    if done is None:
        return Progress(None, note[:_LONGEST])
    if isinstance(done, bool) or not isinstance(done, int | float) or not 0 <= done <= 1:
        raise ValueError(f"done: expected a number from 0 to 1, or None, got {shown(done)}")
    return Progress(float(done), note[:_LONGEST])


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[float | None, str]).decode


def pack_progress(progress: Progress) -> bytes:
    """The progress as a store keeps it."""
    packed = _encode((progress.done, progress.note.encode("utf-8", "replace").decode()))
    assert len(packed) <= PROGRESS
    return packed


def unpack_progress(packed: bytes | None) -> Progress | None:
    """The progress that a store has kept; None if there is none, or it cannot be read.

    >>> unpack_progress(pack_progress(Progress(0.5)))
    Progress(done=0.5, note='')
    """
    if packed is None:
        return None
    try:
        return check_progress(*_decode(packed))
    except ValueError:
        return None
