"""Ids made from content."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from headrace.errors import CodecError
from headrace.payloads.codec import refuse_nan


def content_id(payload: Any) -> str:
    """An id made from the payload itself: equal payloads, whatever the order of their keys, get equal ids.

    128 bits, so that two different payloads never collide in practice.

    >>> content_id({"a": 1, "b": 2}) == content_id({"b": 2, "a": 1})
    True
    """
    try:
        canonical = msgspec.json.encode(payload, order="sorted")
        refuse_nan(payload)
    except CodecError:
        raise
    except RecursionError:
        raise CodecError(
            f"cannot make an id from {type(payload).__name__}: it is nested too deeply, or contains itself"
        ) from None
    except Exception as error:
        raise CodecError(f"cannot make an id from {type(payload).__name__}: {error}") from error
    return hashlib.blake2b(canonical, digest_size=16).hexdigest()
