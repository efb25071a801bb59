"""Documents: small values that the core keeps in a store for itself, such as the rules of retention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Document(Struct, frozen=True):
    """A value under a name."""

    name: str
    version: int
    """1 when it is made; every change adds one."""
    body: bytes
    """At most 1 MiB. What it means is no concern of the store."""


class DocumentStore(Protocol):
    """Some thousand documents at most. What holds for the ten operations holds here too. A store that is full takes
    them all the same, as cleaning up needs them."""

    async def get(self, names: Sequence[str]) -> list[Document | None]:
        """The documents of these names, in order; None for those that there are not."""

    async def put(self, name: str, body: bytes | None, version: int) -> bool:
        """Replace a document, or remove it if ``body`` is None, and return True, if its version is the stored one (0:
        there is none). It is stored with the next version. Of two that name the same version, one succeeds. After a
        removal, versions begin again at 1."""

    async def find(self, prefix: str, after: str = "", limit: int = 100) -> list[Document]:
        """Documents whose names begin with the prefix and come after ``after``, in the order of their names (by code
        points)."""
