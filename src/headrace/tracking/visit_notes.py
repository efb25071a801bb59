"""Visits that are under way, of trackers whose results go to a sink: who they visit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hashlib import blake2b

import msgspec
from msgspec import Struct

from headrace.errors import ConfigError, Unavailable
from headrace.seam.documents import DocumentStore

log = logging.getLogger("headrace")
_TRIES = 20
"""How often a visit is noted while others note it at the same time."""


class UnderWay(Struct, frozen=True):
    """A visit as it was begun first. Whoever repeats it visits the same subjects, and stores their results under the
    same instant: the sheet may have changed meanwhile."""

    run: int
    ran_at: int | None
    due_at: int
    subjects: Sequence[str]


_decode = msgspec.json.Decoder(UnderWay).decode


class VisitNotes:
    """The visits of one sheet, in the store: one at most is under way."""

    def __init__(self, documents: DocumentStore, tracker: str, tier: str, low: int) -> None:
        self._documents = documents
        digest = blake2b(msgspec.json.encode((tracker, tier, low)), digest_size=16).hexdigest()
        self._name = f"tracks/visit/{digest}"
        self._version = 0

    async def begin(self, visit: UnderWay) -> UnderWay:
        """Note a visit; returns it as it was begun first. A worker that may not note anything goes on without."""
        try:
            return await self._begin(visit)
        except ConfigError as error:
            log.debug("a visit of a tracker is not noted: %s", error)
            return visit

    async def _begin(self, visit: UnderWay) -> UnderWay:
        body = msgspec.json.encode(visit)
        if await self._documents.put(self._name, body, 0):
            self._version = 1
            return visit
        for _ in range(_TRIES):
            [found] = await self._documents.get([self._name])
            if found is not None and _same(known := _decode(found.body), visit):
                self._version = found.version
                return known
            version = 0 if found is None else found.version
            if await self._documents.put(self._name, body, version):
                self._version = version + 1
                return visit
        raise Unavailable(f"others keep noting the visit {self._name}; it is made again")

    async def end(self) -> None:
        """The visit is over, and its results are stored."""
        if self._version:
            await self._documents.put(self._name, None, self._version)


def _same(one: UnderWay, other: UnderWay) -> bool:
    return (one.run, one.ran_at) == (other.run, other.ran_at)
