"""Job ids: UUIDv7 from an injected clock and randomness, rising within a process."""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from random import Random
from struct import Struct
from weakref import WeakSet

from headrace.core.clock import Clock
from headrace.errors import InvalidJob
from headrace.seam.forks import in_child
from headrace.text import shown

_VERSION, _VARIANT = 0x7 << 12, 0b10 << 62
"""Those of a UUIDv7."""
_PACK = Struct(">QQ").pack


class IdMaker:
    """Makes ids that sort in the order in which they were made, even within one microsecond or when the clock steps
    back.

    >>> from headrace.core.clock import ManualClock
    >>> ids = IdMaker(ManualClock(), Random(1))
    >>> a, b = ids.new(), ids.new()
    >>> a < b, a[6] >> 4
    (True, 7)
    """

    def __init__(self, clock: Clock, rng: Random) -> None:
        self.clock = clock
        self._now = clock.now
        self._getrandbits = rng.getrandbits
        self._last = 0

    def new(self) -> bytes:
        """16 bytes: 48 bits of milliseconds, 12 bits of their fraction, 62 random bits."""
        now = self._now()
        tick = (now // 1_000 << 12) | (now % 1_000 * 4_096 // 1_000)
        if tick <= self._last:
            tick = self._last + 1
        self._last = tick
        return _PACK((tick >> 12 << 16) | _VERSION | (tick & 0xFFF), _VARIANT | self._getrandbits(62))


class _Unguessable(Random):
    """Randomness of a real process. Public ids are made from it and give its state away, so secrets come from
    elsewhere. A forked child is reseeded, so that no two processes draw the same."""

    def __init__(self) -> None:
        super().__init__(secrets.randbits(256))
        _RESEEDED.add(self)


_RESEEDED: WeakSet[_Unguessable] = WeakSet()


def _reseed() -> None:
    for rng in list(_RESEEDED):
        rng.seed(secrets.randbits(256))


in_child(_reseed)


def secret_name(rng: Random) -> str:
    """A name that nobody can guess, for holders and inboxes; made from ``rng`` only if that was given a seed. Short,
    because stores write a holder with every lease."""
    bits = secrets.randbits(128) if isinstance(rng, _Unguessable) else rng.getrandbits(128)
    return urlsafe_b64encode(bits.to_bytes(16, "big")).decode().rstrip("=")


def seeded_by_system() -> Random:
    """Randomness that differs in every process, forked ones included."""
    return _Unguessable()


def parse_id(text: str) -> bytes:
    """The id in ``text``, with or without dashes.

    >>> parse_id("01900000-0001-7000-8000-000000000000").hex()
    '01900000000170008000000000000000'
    """
    digits = text.replace("-", "")
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise InvalidJob(f"expected a job id, a UUID of 32 hex digits, got {shown(text)}")
    return raw
