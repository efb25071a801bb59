"""How far ended jobs were archived: what comes after that stays in the store."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headrace.core.documents import change_document
from headrace.seam.archive import Mark
from headrace.seam.documents import Document, DocumentStore
from headrace.types import JobState

MARKS = "vault/marks"


class Progress(Struct, frozen=True):
    """How far the jobs of one state were archived."""

    mark: Mark | None = None
    pending: Mark | None = None
    """The last job of the page that is being written: whoever repeats it writes the same page."""
    through: int = 0
    """What ended at this instant or before is archived, and nothing more can end there."""


class Marks(Struct, frozen=True):
    """How far the jobs of all states were archived."""

    states: dict[str, Progress] = {}
    vault: str = ""
    """Where the vault lies; empty: nobody archives."""
    left: dict[str, dict[str, Progress]] = {}
    """How far vaults were written that are no longer used, by where they lie."""

    def of(self, state: JobState) -> Progress:
        """How far those of one state were."""
        return self.states.get(state.value, Progress())

    def ended_by(self) -> dict[JobState, int]:
        """By state: what ended at this instant or before is archived."""
        ended = (JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED)
        return {state: self.of(state).through for state in ended}


_NONE = Marks()
_decode = msgspec.json.Decoder(Marks).decode


def read_marks(document: Document | None) -> Marks | None:
    """The marks in a document; None: there is no vault."""
    marks = _NONE if document is None else _decode(document.body)
    return marks if marks.vault else None


class ArchiveMarks:
    """The marks of one vault, in the store. A change counts only if nobody else has made one meanwhile."""

    def __init__(self, documents: DocumentStore, vault: str) -> None:
        """``vault``: where it lies."""
        self._documents = documents
        self._vault = vault
        self._version = 0

    async def read(self) -> Marks:
        """The marks as they are now. If nobody archives, somebody does from now on: nothing goes that is not archived.
        A vault that was left goes on where it ended, so that no job is in it twice."""
        while True:
            marks = await self._read()
            if marks.vault == self._vault:
                return marks
            left = dict(marks.left)
            states = marks.states or left.pop(self._vault, {})
            await self._put(Marks(states, self._vault, left))

    async def save(self, marks: Marks, state: JobState, progress: Progress) -> Marks | None:
        """Change the marks that were read last; None: somebody else was faster."""
        new = replace(marks, states=marks.states | {state.value: progress})
        if not await self._put(new):
            return None
        self._version += 1
        return new

    async def _read(self) -> Marks:
        [document] = await self._documents.get([MARKS])
        self._version = 0 if document is None else document.version
        return _NONE if document is None else _decode(document.body)

    async def _put(self, marks: Marks) -> bool:
        return await self._documents.put(MARKS, msgspec.json.encode(marks), self._version)


async def leave_vault(documents: DocumentStore) -> None:
    """There is no vault any more: what is not archived may go."""

    def left(body: bytes | None) -> bytes | None:
        marks = _NONE if body is None else _decode(body)
        if not marks.vault:
            return body
        return msgspec.json.encode(Marks(left=marks.left | {marks.vault: marks.states}))

    await change_document(documents, MARKS, left)
