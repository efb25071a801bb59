"""Documents in a SQLite file."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.sqlite.connection_thread import Capability
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.seam.documents import Document

_SQL = load("document")


class SqliteDocuments(Capability):
    """The operations of a :class:`~headrace.seam.documents.DocumentStore`."""

    async def get(self, names: Sequence[str]) -> list[Document | None]:
        return await self._read(lambda session, _: [_get(session, name) for name in names], None)

    async def put(self, name: str, body: bytes | None, version: int) -> bool:
        return await self._write(lambda tx, _: _put(tx, name, body, version), None)

    async def find(self, prefix: str, after: str = "", limit: int = 100) -> list[Document]:
        return await self._read(lambda session, _: _find(session, prefix, after, limit), None)


def _get(session: Session, name: str) -> Document | None:
    row = session.first(_SQL["get"], (name,))
    return None if row is None else Document(name, *row)


def _put(tx: Transaction, name: str, body: bytes | None, version: int) -> bool:
    row = tx.first(_SQL["get"], (name,))
    if version != (0 if row is None else row[0]):
        return False
    if body is None:
        tx.execute(_SQL["remove"], (name,))
    else:
        tx.execute(_SQL["put"], (name, version + 1, body))
    return True


def _find(session: Session, prefix: str, after: str, limit: int) -> list[Document]:
    found = session.rows(_SQL["find"], (max(prefix, after), after, prefix, limit))
    return [Document(name, version, body) for name, version, body in found]
