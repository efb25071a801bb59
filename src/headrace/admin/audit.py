"""The audit log: who did what, written before it is done."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct, field

from headrace.api.client import Client
from headrace.core.view import View
from headrace.seam.instants import to_datetime

log = logging.getLogger("headrace.audit")

_LONGEST = 16_000


class AuditEntry(View, frozen=True):
    """One thing that an operator asked for.

    >>> AuditEntry(1, None, "ada", "requeue").details
    {}
    """

    number: int
    at: datetime | None
    actor: str
    """The name of a token, or the user of a command line."""
    action: str
    details: dict[str, Any] = field(default_factory=dict)


class _Kept(Struct, omit_defaults=True):
    actor: str
    action: str
    details: dict[str, Any] = {}


_DECODER = msgspec.json.Decoder(_Kept)


class Audit:
    """Notes in the store's journal what operators ask for."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def note(self, actor: str, action: str, **details: Any) -> None:
        """Note what is about to be done. If it cannot be noted, this raises, and it is not done. Where the store has no
        journal, it is logged."""
        told = {name: value for name, value in details.items() if value is not None}
        text = msgspec.json.encode(_Kept(actor, action, msgspec.to_builtins(told, str_keys=True)))
        if len(text) > _LONGEST:
            text = msgspec.json.encode(_Kept(actor, action, {"details": "too long to be kept"}))
        journal = (await self._client.backend()).journal
        if journal is not None:
            await journal.write(text, self._client.clock.stamp())
        log.info("%s: %s", actor, action, extra={"actor": actor, "action": action})

    async def entries(self, before: int | None = None, limit: int = 100) -> list[AuditEntry]:
        """What was asked for, newest first; with ``before``, the entries before that number."""
        journal = (await self._client.backend()).journal
        if journal is None:
            return []
        return [_entry(one.number, one.at, one.text) for one in await journal.read(before, limit)]


def _entry(number: int, at: int, text: bytes) -> AuditEntry:
    try:
        kept = _DECODER.decode(text)
    except (msgspec.DecodeError, ValueError):
        kept = _Kept("?", "unreadable")
    return AuditEntry(number, to_datetime(at), kept.actor, kept.action, kept.details)
