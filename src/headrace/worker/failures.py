"""The failures of a job, as a store keeps them."""

from __future__ import annotations

import msgspec

from headrace.types import Failure

_DECODER = msgspec.msgpack.Decoder(list[Failure])


def failures(error: bytes | None) -> list[Failure]:
    """The last failures, as a stored error has them, oldest first."""
    if error is None:
        return []
    try:
        return _DECODER.decode(error)
    except Exception:  # not MessagePack, not text, not even bytes
        return [Failure("Unreadable", "the stored error cannot be decoded")]
