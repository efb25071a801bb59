"""Pages of old rows that are archived before they are deleted, and each of them once."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec
from msgspec import Struct

from headrace.seam.documents import DocumentStore
from headrace.seam.instants import to_datetime
from headrace.seam.tables import Cutoff, HotRule, OldRow, TableStore
from headrace.tracking.sink import RowSink


class _Page(Struct, frozen=True):
    """A page that somebody is writing."""

    name: str
    at: int
    cutoff: Cutoff
    last: int
    """The age of its last row."""
    rows: frozenset[str]
    """By digests of what they held."""


_decode = msgspec.json.Decoder(_Page | None).decode


class ArchivedPages:
    """Writes pages to an archive, and deletes their rows then.

    Before a page is written, its rows are noted in the store. Whoever goes on after a death writes the same rows under
    the same name, whatever has become too old since, and an archive that has the page writes nothing. Any number of
    sweeps may do this at once. A row that has changed meanwhile is another row.
    """

    def __init__(self, documents: DocumentStore, store: TableStore, rule: HotRule, archive: RowSink, name: str) -> None:
        self._documents = documents
        self._store = store
        self._rule = rule
        self._archive = archive
        self._name = name
        self._note = f"tables/page/{name}"

    async def step(self, cutoff: Cutoff, limit: int) -> tuple[int, int, bool]:
        """Archive and delete the page that somebody has begun, or a new one: how many rows were archived, how many
        deleted, and whether there may be more."""
        [document] = await self._documents.get([self._note])
        version = 0 if document is None else document.version
        begun = page = None if document is None else _decode(document.body)
        if page is None:
            rows = await self._store.oldest(self._rule, cutoff, limit, values=True)
            if not rows:
                return 0, 0, False
            page = _page(rows, cutoff)
            if not await self._documents.put(self._note, msgspec.json.encode(page), version):
                return await self.step(cutoff, limit)  # somebody else was faster, and that page comes first
            version += 1
        else:
            rows = await self._begun(page, limit)
        if rows:
            values = [row.values for row in rows]
            await self._archive.append(self._name, values, at=to_datetime(page.at), name=page.name)
        gone = await self._store.delete(self._rule, cutoff, rows) if rows else 0
        # It is emptied, not removed: its versions would begin again, and somebody slow would empty the next one.
        await self._documents.put(self._note, b"null", version)
        return len(rows), gone, begun is not None or (len(rows) == limit and gone > 0)

    async def _begun(self, page: _Page, limit: int) -> list[OldRow]:
        """The rows of a page that are still as they were: older ones may have come since."""
        while True:
            limit *= 2
            found = await self._store.oldest(self._rule, page.cutoff, limit, values=True)
            if len(found) < limit or found[-1].age > page.last:
                return [row for row in found if _digest(row) in page.rows]


def _page(rows: Sequence[OldRow], cutoff: Cutoff) -> _Page:
    digests = [_digest(row) for row in rows]
    name = blake2b("".join(digests).encode(), digest_size=16).hexdigest()
    return _Page(name, rows[0].age, cutoff, rows[-1].age, frozenset(digests))


def _digest(row: OldRow) -> str:
    return blake2b(msgspec.msgpack.encode(row.key), digest_size=12).hexdigest()
