"""Documents that several change at the same time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.backends.memory import MemoryBackend
from headrace.core.documents import Body, change_document
from headrace.errors import Unavailable
from headrace.seam.documents import Document, DocumentStore


class Rivals(DocumentStore):
    """Somebody else changes a document so many times, each time after it was read."""

    def __init__(self, documents: DocumentStore, times: int) -> None:
        self._documents = documents
        self.times = times

    async def get(self, names: Sequence[str]) -> list[Document | None]:
        found = await self._documents.get(names)
        if self.times:
            self.times -= 1
            [old] = found
            await self._documents.put(names[0], b"%d" % self.times, 0 if old is None else old.version)
        return found

    async def put(self, name: str, body: bytes | None, version: int) -> bool:
        return await self._documents.put(name, body, version)


async def test_a_change_is_made_of_what_is_there_when_it_is_stored() -> None:
    store = MemoryBackend()
    await store.open()
    seen: list[Body] = []

    def change(body: Body) -> Body:
        seen.append(body)
        return (body or b"") + b"!"

    await change_document(Rivals(store.documents, 2), "d", change)
    assert seen == [None, b"1", b"0"]
    [found] = await store.documents.get(["d"])
    assert found is not None
    assert (found.body, found.version) == (b"0!", 3)
    await change_document(store.documents, "d", lambda body: body)
    await change_document(store.documents, "d", lambda _: None)
    assert await store.documents.get(["d"]) == [None]


async def test_a_change_that_never_comes_first_ends_and_says_so() -> None:
    store = MemoryBackend()
    await store.open()
    rivals = Rivals(store.documents, 1_000)
    with pytest.raises(Unavailable, match="others keep changing the document d; try again"):
        await change_document(rivals, "d", lambda _: b"mine")
    assert rivals.times > 900
