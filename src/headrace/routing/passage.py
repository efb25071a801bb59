"""How far a transfer has come: one document in the store that is left."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from headrace.core.documents import TypedDocument, change_document
from headrace.errors import ConfigError
from headrace.seam.documents import DocumentStore
from headrace.seam.protocol import Backend

DOCUMENT = "transfer"
PART = f"{DOCUMENT}/part"
"""A document of the store that jobs move to, until the transfer is finished."""


class Phase(StrEnum):
    """What everybody does, from the first phase to the last."""

    SHADOW = "shadow"
    """All is in the first store. Copies of new jobs go to the second one, behind the producers' backs."""
    DUAL = "dual"
    """The same, but producers wait for the copies."""
    READY = "ready"
    """All is in the first store, and everybody looks into both."""
    FORWARD = "cutover"
    """New jobs go to the second store. Jobs move there from the first one, and are claimed from both."""
    MOVED = "moved"
    """The same, and nothing is left to move."""
    BACK = "rollback"
    """The other way round: new jobs go to the first store, and jobs move back."""
    DONE = "done"
    """All is in the second store, for good."""


SHADOWED = (Phase.SHADOW, Phase.DUAL)
MOVING = (Phase.FORWARD, Phase.MOVED, Phase.BACK)


class Verdict(Struct, frozen=True, kw_only=True):
    """What the ledgers of a transfer say."""

    legs: int = 0
    departed: int = 0
    arrived: int = 0
    in_transit: int = 0
    lost: int = 0
    """They departed, and neither arrived nor are in a parcel."""
    doubled: int = 0
    """They are in both stores."""
    examples: tuple[str, ...] = ()
    """Ids of some that are lost or doubled."""


class Transfer(Struct, frozen=True, kw_only=True):
    """A transfer from one store to another."""

    name: str
    """Random: a transfer that is begun again has another one."""
    phase: Phase
    legs: int = 0
    """How often the direction has changed; the last one is under way, if jobs move."""
    paused: bool = False
    """Whether movers wait."""
    rate: int | None = None
    """Jobs that move per second at most; None: as fast as they can."""
    share: float = 1.0
    """The part of new jobs that get a copy, while copies are made."""
    began_at: int = 0
    phase_at: int = 0
    """When the phase began, on the clock of the first store."""
    depths: tuple[int | None, int | None] = (None, None)
    """The depth of each store before it was closed to new jobs."""
    turning: bool = False
    """Whether what belongs to no job is just being taken along, before the direction changes: what is written
    meanwhile may be left behind."""
    held: tuple[str, ...] = ()
    """Queues that stand still in the store that jobs move to, until all their jobs are there: their jobs have
    groups."""
    verdict: Verdict | None = None
    """What the ledgers said when it ended; then they are dropped."""

    def leg(self, number: int | None = None) -> str:
        """The name of a leg, in stores."""
        return f"{self.name}/{self.legs if number is None else number}"


_TRANSFER = TypedDocument[Transfer | None](DOCUMENT, Transfer, None)


def documents_of(store: Backend) -> DocumentStore:
    """The capability of a store that has it."""
    if store.documents is None:
        raise ConfigError("expected stores that keep documents; see docs/howto/backends.md")
    return store.documents


async def read(store: Backend) -> Transfer | None:
    """The transfer from this store, if there is one."""
    return await _TRANSFER.read(documents_of(store))


async def write(store: Backend, change: Callable[[Transfer | None], Transfer | None]) -> Transfer | None:
    """Change the transfer from this store; None removes it."""
    return await _TRANSFER.change(documents_of(store), change)


async def has_all(store: Backend) -> bool:
    """Whether this store has all jobs that it ever had: none are in another because of a transfer from it or to it."""
    found, part = await documents_of(store).get([DOCUMENT, PART])
    transfer = _TRANSFER.value(found)
    return part is None and (transfer is None or transfer.phase not in (*MOVING, Phase.DONE))


async def mark_part(store: Backend) -> None:
    """Note that jobs move to this store, and others are elsewhere."""
    await documents_of(store).put(PART, b"", 0)


async def mark_whole(store: Backend) -> None:
    """All jobs are in this store, for good."""
    for name in (PART, DOCUMENT):
        await change_document(documents_of(store), name, lambda _: None)
