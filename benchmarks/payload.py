"""The jobs' payloads: about as many bytes as asked for, hard to compress or like JSON."""

from __future__ import annotations

import json
import random
import string

SMALL = 200
_AROUND = 20
"""Bytes that field names, quotes and the number take in JSON."""

REFERENCE = {"vm_state": 2_700, "blob": 1_600, "parameters": 155, "metadata": 120}
"""The reference load: bytes per section, 4.5 KB together."""

_WORDS = [
    "account", "action", "amount", "billing", "campaign", "channel", "checkout", "click", "country", "customer",
    "delivered", "device", "email", "event", "failed", "filter", "group", "hook", "identify", "invoice", "language",
    "marketing", "mobile", "order", "page", "payment", "pending", "person", "plan", "product", "property", "queue",
    "region", "report", "retry", "session", "signup", "source", "status", "subject", "subscription", "team",
    "template", "timeout", "trial", "url", "user", "version", "visit", "webhook", "workspace",
]  # fmt: skip


def pad(size: int) -> str:
    """Text that brings a JSON payload ``{"n": …, "pad": …}`` to ``size`` bytes; the same in every process."""
    return "".join(random.Random(size).choices(string.ascii_letters + string.digits, k=max(0, size - _AROUND)))


def noise(size: int, number: int) -> bytes:
    """Bytes that nothing can compress, others for each number."""
    return random.Random(number).randbytes(size)


def document(size: int, number: int) -> bytes:
    """A JSON document as programs write it: the same keys over and over, ids, instants, amounts and a few words."""
    chance = random.Random(number)
    items: list[dict[str, object]] = []
    length = 0
    while length < size:
        item = {
            "id": chance.randbytes(8).hex(),
            "type": chance.choice(_WORDS),
            "timestamp": f"2025-0{chance.randint(1, 9)}-{chance.randint(10, 28)}T{chance.randint(10, 23)}:15:00.000Z",
            "properties": {chance.choice(_WORDS): chance.choice(_WORDS), "value": chance.randint(0, 99_999)},
            "name": " ".join(chance.choices(_WORDS, k=4)),
            "enabled": chance.random() < 0.5,
        }
        items.append(item)
        length += len(json.dumps(item)) + 2
    return json.dumps(items).encode()[:size]


def sections(number: int, *, compressible: bool) -> dict[str, bytes]:
    """The reference load's sections, other ones for each number."""
    make = document if compressible else noise
    return {name: make(size, number * len(REFERENCE) + place) for place, (name, size) in enumerate(REFERENCE.items())}
