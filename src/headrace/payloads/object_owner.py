"""Whose objects lie under a prefix: one store's. Who deletes there knows the references of that store only."""

from __future__ import annotations

import logging
from secrets import token_hex

from headrace.errors import ConfigError, ObjectMissing
from headrace.payloads.objects import Objects, Range
from headrace.seam.documents import DocumentStore

log = logging.getLogger("headrace")

_MARKER = "owner"
"""The object that names the owner."""
_DOCUMENT = "objects/owner"
"""The store's own name for itself. It goes along when the jobs move to another store."""
_LENGTH = 32


class ObjectOwner:
    """A store that keeps objects has a random name, in a document. The first to come puts it into an object, on
    condition that there is none; whoever then comes with another name is turned away."""

    def __init__(self, objects: Objects, documents: DocumentStore) -> None:
        self._objects = objects
        self._documents = documents

    async def check(self) -> None:
        """Take the prefix if it is nobody's. Raises ``ConfigError`` if it is another store's.

        A role that may not write documents leaves the taking to others; one that may not even read them, the check.
        """
        try:
            name = await self._name()
        except ConfigError as error:
            log.debug("cannot check whose objects these are: %s", error)
            return
        owner = await self._owner()
        if owner is None and name is not None:
            owner = name if await self._objects.create(_MARKER, name.encode()) else await self._owner()
        if owner not in (None, name):
            raise ConfigError(
                f"object store {self._objects.location.where}: expected a prefix of this store's own, got one that "
                "another store uses; each would delete the other's objects. Give objects.url another prefix; or, if "
                "the other store is gone for good, run: headrace objects adopt"
            )

    async def is_ours(self) -> bool:
        """Whether the prefix is this store's, as of now."""
        [known] = await self._documents.get([_DOCUMENT])
        return known is not None and known.body.decode() == await self._owner()

    async def adopt(self) -> None:
        """Make the prefix ours, whosever it is. Its owner until now deletes nothing there any more."""
        name = await self._name()
        if name is None:
            raise ConfigError("adopting a prefix needs the right to write documents (on PostgreSQL: janitor)")
        await self._objects.delete([_MARKER])
        await self._objects.create(_MARKER, name.encode())
        await self.check()

    async def _name(self) -> str | None:
        """The store's name, made if there is none; None: this role cannot make it."""
        [known] = await self._documents.get([_DOCUMENT])
        if known is None:
            try:
                await self._documents.put(_DOCUMENT, token_hex(_LENGTH // 2).encode(), 0)
            except ConfigError as error:
                log.debug("cannot name the owner of objects: %s", error)
                return None
            [known] = await self._documents.get([_DOCUMENT])
        return None if known is None else known.body.decode()

    async def _owner(self) -> str | None:
        try:
            [body] = await self._objects.read(_MARKER, [Range(0, _LENGTH)])
        except ObjectMissing:
            return None
        return body.decode()
