"""The jobs' payloads: about as many bytes as asked for, and hard to compress, as real ones are."""

from __future__ import annotations

import random
import string

SMALL = 200
_AROUND = 20
"""Bytes that field names, quotes and the number take in JSON."""


def pad(size: int) -> str:
    """Text that brings a JSON payload ``{"n": …, "pad": …}`` to ``size`` bytes; the same in every process."""
    return "".join(random.Random(size).choices(string.ascii_letters + string.digits, k=max(0, size - _AROUND)))
