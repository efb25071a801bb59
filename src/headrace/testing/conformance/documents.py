"""documents: small values under names, changed by one at a time."""

from __future__ import annotations

import asyncio

from headrace.seam.documents import Document, DocumentStore
from headrace.seam.protocol import Backend
from headrace.testing.conformance.base import HOSTILE, ConformanceBase, needs


class DocumentTests(ConformanceBase):
    def documents(self, store: Backend) -> DocumentStore:
        """The capability, in tests that need it."""
        assert store.documents is not None
        return store.documents

    @needs("documents")
    async def test_a_document_is_replaced_by_those_who_know_its_version(self, store: Backend) -> None:
        documents = self.documents(store)
        assert await documents.get(["a", "b"]) == [None, None]
        assert await documents.get([]) == []
        assert not await documents.put("a", b"early", 1)
        assert await documents.put("a", b"one", 0)
        assert not await documents.put("a", b"other", 0)
        assert await documents.put("a", b"", 1)
        assert not await documents.put("a", b"late", 1)
        assert await documents.get(["b", "a"]) == [None, Document("a", 2, b"")]

    @needs("documents")
    async def test_a_document_is_removed_by_those_who_know_its_version(self, store: Backend) -> None:
        documents = self.documents(store)
        assert await documents.put("a", None, 0)
        assert await documents.put("a", b"one", 0)
        assert not await documents.put("a", None, 0)
        assert not await documents.put("a", None, 2)
        assert await documents.put("a", None, 1)
        assert await documents.get(["a"]) == [None]
        assert await documents.put("a", b"new", 0)
        assert await documents.get(["a"]) == [Document("a", 1, b"new")]

    @needs("documents")
    async def test_of_those_who_change_a_document_at_once_one_succeeds(self, store: Backend) -> None:
        documents = self.documents(store)
        for version in range(3):
            done = await asyncio.gather(*(documents.put("a", b"%d" % n, version) for n in range(8)))
            assert sum(done) == 1
            assert await documents.get(["a"]) == [Document("a", version + 1, b"%d" % done.index(True))]

    @needs("documents")
    async def test_documents_are_found_by_prefix_in_the_order_of_names(self, store: Backend) -> None:
        documents = self.documents(store)
        names = ["a", "a/1", "a/10", "a/2", "a/B", "a/b", "a/é", "a/キ", "a/🙂", "a0", "b/1"]
        for name in reversed(names):
            assert await documents.put(name, name.encode(), 0)
        found = [one for one in names if one.startswith("a/")]
        assert [one.name for one in await documents.find("a/")] == found
        assert [one.name for one in await documents.find("")] == names
        assert await documents.find("a/", "a/2", 2) == [Document("a/B", 1, b"a/B"), Document("a/b", 1, b"a/b")]
        assert await documents.find("c") == []
        assert await documents.find("a/", "b") == []

    @needs("documents")
    async def test_names_and_bodies_are_data(self, store: Backend) -> None:
        documents = self.documents(store)
        body = bytes(range(256)) * 400
        for name in HOSTILE:
            assert await documents.put(name, body + name.encode(), 0)
        assert await documents.get(HOSTILE) == [Document(name, 1, body + name.encode()) for name in HOSTILE]
        for name in HOSTILE:
            assert name in [one.name for one in await documents.find(name)]
