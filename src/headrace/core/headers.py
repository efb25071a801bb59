"""Headers: small notes that travel with a job."""

from __future__ import annotations

import msgspec

SLOT = "headrace-slot"
"""The header that names a job's slot: the schedule's uid and the instant."""

SOURCE = "headrace-source"
"""The header that says where a job came from."""

_HEADERS = msgspec.msgpack.Decoder(dict[str, str])


def read_headers(cell: bytes | None) -> dict[str, str]:
    """The headers of a job; none if they cannot be read."""
    try:
        return _HEADERS.decode(cell) if cell else {}
    except Exception:  # not MessagePack, not text, not even bytes
        return {}
