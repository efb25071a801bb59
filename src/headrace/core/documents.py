"""Documents that hold one value each, and changes of them: read one, make another of it, store it if nobody else was
faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from headrace.errors import Unavailable
from headrace.seam.documents import Document, DocumentStore

_TRIES = 20
"""How often a change is repeated if another one came first."""
T = TypeVar("T")
Body = bytes | None
"""Of a document; None stands for no document."""


async def change_document(documents: DocumentStore, name: str, change: Callable[[Body], Body]) -> None:
    """Replace a document by what ``change`` makes of it. Somebody else may change it at
    the same time, so ``change`` may be called several times. Raises :class:`~headrace.Unavailable` if others were
    faster each time."""
    for _ in range(_TRIES):
        [found] = await documents.get([name])
        old = None if found is None else found.body
        new = change(old)
        if new == old or await documents.put(name, new, 0 if found is None else found.version):
            return
    raise Unavailable(f"others keep changing the document {name}; try again")


class TypedDocument(Generic[T]):
    """A document that holds a value of one type, as JSON. A value that equals ``empty`` is no document."""

    def __init__(self, name: str, type: Any, empty: T) -> None:
        self.name = name
        self._decode = msgspec.json.Decoder(type).decode
        self._empty = empty

    def value(self, found: Document | None) -> T:
        """What a document holds."""
        return self._empty if found is None else self._value(found.body)

    async def read(self, documents: DocumentStore) -> T:
        """The value in this store."""
        [found] = await documents.get([self.name])
        return self.value(found)

    async def change(self, documents: DocumentStore, change: Callable[[T], T]) -> T:
        """Replace the value by what ``change`` makes of it, as ``change_document`` does."""
        new = self._empty

        def changed(body: Body) -> Body:
            nonlocal new
            old = self._value(body)
            new = change(old)
            return body if new == old else None if new == self._empty else msgspec.json.encode(new)

        await change_document(documents, self.name, changed)
        return new

    def _value(self, body: Body) -> T:
        return self._empty if body is None else self._decode(body)
