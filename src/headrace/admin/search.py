"""Search: pages of jobs that pass a filter, newest first, at a bounded cost."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headrace.admin.filters import Filter, Subject
from headrace.api.client import Client
from headrace.core.validation import check_limit, check_selector
from headrace.errors import ConfigError, PartlyUnavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import JobId, Record
from headrace.text import shown

LOOKED_AT = 5_000
"""Jobs that one call looks at, give or take a page."""
_PAGE = 500
_FETCHED = 100
"""Jobs whose cells are fetched in one trip: arguments may be large."""


class Found(Struct, frozen=True):
    """One page of a search."""

    records: list[Record]
    after: str | None = None
    """Leads to the next page; None: there is none."""
    looked_at: int = 0


class _Cursor(Struct, frozen=True):
    """Where a search goes on: a page of the store, and the last job of it that was returned."""

    page: str | None = None
    last: JobId | None = None

    def write(self) -> str:
        return f"{'' if self.last is None else self.last.hex()}.{self.page or ''}"

    @classmethod
    def read(cls, text: str | None) -> _Cursor:
        if text is None:
            return cls()
        last, dot, page = text.partition(".")
        try:
            found = bytes.fromhex(last)
        except ValueError:
            found = b"?"
        if not dot or len(found) not in (0, 16):
            raise ConfigError(f"after: expected what the page before answered, got {shown(text)}")
        return cls(page or None, found or None)


async def search(client: Client, wanted: Filter, after: str | None = None, limit: int = 50) -> Found:
    """Up to ``limit`` jobs that pass, newest first. It may find fewer, or none, and still have an ``after``: a call
    looks at a bounded number of jobs."""
    check_limit(limit)
    selector, cursor = check_selector(wanted.selector), _Cursor.read(after)
    backend, now = await client.backend(), await client.store_now()
    found: list[Record] = []
    looked_at = 0
    size = min(_PAGE, backend.limits.max_batch) if wanted.tests else min(limit, backend.limits.max_batch)
    while True:
        try:
            page = await backend.scan(selector, cursor.page, size, client.clock.stamp())
        except ValueError as error:
            raise ConfigError(f"after: expected what the page before answered, got {shown(after)}") from error
        except PartlyUnavailable:
            if found:
                return Found(found, cursor.write(), looked_at)
            raise
        records = [one for one in page.records if cursor.last is None or one.id < cursor.last]
        looked_at += len(records)
        for record in await _passing(client, backend, wanted, records, now):
            found.append(record)
            if len(found) == limit:
                done = page.after is None and record.id == page.records[-1].id
                return Found(found, None if done else _Cursor(cursor.page, record.id).write(), looked_at)
        cursor = _Cursor(page.after)
        if page.after is None:
            return Found(found, None, looked_at)
        if looked_at >= LOOKED_AT:
            return Found(found, cursor.write(), looked_at)


async def _passing(
    client: Client, backend: Backend, wanted: Filter, records: Sequence[Record], now: int
) -> list[Record]:
    envelope = client.packer.envelope
    if not wanted.want:
        return [one for one in records if wanted.passes(Subject(one, now, envelope, wanted.redaction))]
    passing: list[Record] = []
    for at in range(0, len(records), _FETCHED):
        ids = [one.id for one in records[at : at + _FETCHED]]
        for one in await backend.fetch(ids, wanted.want, client.clock.stamp()):
            if one is not None and wanted.passes(Subject(one, now, envelope, wanted.redaction)):
                passing.append(one)
    return passing
