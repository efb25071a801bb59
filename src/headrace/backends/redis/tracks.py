"""The sheets of trackers, those of one tracker in one shard: each operation is one call of a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Any

import msgspec

from headrace.backends.portions import slices
from headrace.backends.redis.capability import Run
from headrace.backends.redis.marshalling import at_arg, tuples
from headrace.seam.records import Stamp
from headrace.seam.tracks import Check, Erase, Sheet, Sheets, Tally, Write

_HEAD = Struct(">QQQQI")
"""SHEET in ``tracks.lua``."""
_version = Struct(">Q").pack
_ERASED = b"e"
_POINTS = 1_000
"""How many points one call looks for."""
_numbers = msgspec.msgpack.Decoder(tuple[int, int, int]).decode


class RedisTracks:
    """The operations of a :class:`~headrace.seam.tracks.TrackStore`."""

    def __init__(self, run_of: Callable[[str], Run]) -> None:
        """``run_of``: what runs scripts in the shard of a tracker."""
        self._run_of = run_of

    async def read(self, tracker: str, points: Sequence[tuple[str, int]], at: Stamp = None) -> Sheets:
        now, found = 0, dict[tuple[str, int], Sheet]()
        for some in slices(points, _POINTS) or [()]:
            asked = [part for point in some for part in point]
            stamp, *flat = await self._run_of(tracker)("sheets", at_arg(at), tracker, *asked)
            now = now or int(stamp)
            found |= {(sheet.tier, sheet.low): sheet for sheet in _sheets(flat)}
        return Sheets(now, [found[name] for name in sorted(found)])

    async def walk(self, tracker: str, tier: str, start: int, limit: int = 100, at: Stamp = None) -> Sheets:
        now, *flat = await self._run_of(tracker)("walk_sheets", at_arg(at), tracker, tier, start, limit)
        return Sheets(int(now), [*_sheets(flat)])

    async def write(self, tracker: str, batch: Sequence[Write | Check | Erase], at: Stamp = None) -> bool:
        if not batch:
            return True
        grows = any(isinstance(change, Write) and change.expect == 0 for change in batch)
        args = [part for change in batch for part in _change(change)]
        script = "write_sheets" if grows else "rewrite_sheets"
        return bool(await self._run_of(tracker)(script, tracker, *args) == 1)

    async def due(self, tracker: str, limit: int, hold: int, at: Stamp = None) -> Sheets:
        now, first, *flat = await self._run_of(tracker)("due_sheets", at_arg(at), tracker, limit, hold)
        return Sheets(int(now), [*_sheets(flat)], int(first) - int(now) if first else None)

    async def tally(self, tracker: str | None = None) -> list[Tally]:
        flat = await self._run_of(tracker or "")("tally_sheets")
        found = (Tally(*_names(name), *_numbers(packed)) for name, packed in tuples(flat, 2))
        chosen = (one for one in found if tracker in (None, one.tracker))
        return sorted(chosen, key=lambda one: (one.tracker, one.tier))


def _sheets(flat: Sequence[Any]) -> Iterator[Sheet]:
    for tier, low, packed in tuples(flat, 3):
        version, due_at, run, ran_at, subjects = _HEAD.unpack_from(packed)
        yield Sheet(
            tier=tier.decode(), low=int(low), version=version, due_at=due_at, run=run, ran_at=ran_at or None,
            subjects=subjects, content=bytes(packed[_HEAD.size :]),
        )  # fmt: skip


def _change(change: Write | Check | Erase) -> tuple[str, int, bytes, bytes]:
    if not isinstance(change, Write):
        return change.tier, change.low, _version(change.expect), _ERASED if isinstance(change, Erase) else b""
    sheet = change.sheet
    head = _HEAD.pack(sheet.version, sheet.due_at, sheet.run, sheet.ran_at or 0, sheet.subjects)
    return sheet.tier, sheet.low, _version(change.expect), head + sheet.content


def _names(name: bytes) -> tuple[str, str]:
    """The tracker and the tier, from the length of the first, and both."""
    size, _, names = name.partition(b":")
    return names[: int(size)].decode(), names[int(size) + 1 :].decode()
