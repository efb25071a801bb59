"""The notes that travel with a job."""

from __future__ import annotations

import msgspec

SLOT = "headrace-slot"
"""The header in which the job of a slot says which one: the schedule's uid and the instant."""

_HEADERS = msgspec.msgpack.Decoder(dict[str, str])


def read_headers(cell: bytes | None) -> dict[str, str]:
    """The notes that travel with a job; none where they cannot be read."""
    try:
        return _HEADERS.decode(cell) if cell else {}
    except Exception:  # not MessagePack, not text, not even bytes
        return {}
