"""How far ended jobs were archived: what comes after that stays in the store."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

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

    def of(self, state: JobState) -> Progress:
        """How far those of one state were."""
        return self.states.get(state.value, Progress())

    def ended_by(self) -> dict[JobState, int]:
        """By state: what ended at this instant or before is archived."""
        ended = (JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED)
        return {state: self.of(state).through for state in ended}


def read_marks(document: Document | None) -> Marks | None:
    """The marks in a document; None: there is no vault."""
    return None if document is None else msgspec.json.decode(document.body, type=Marks)


class ArchiveMarks:
    """The marks in the store. A change counts only if nobody else has made one meanwhile."""

    def __init__(self, documents: DocumentStore) -> None:
        self._documents = documents
        self._version = 0

    async def read(self) -> Marks:
        """The marks as they are now. If there are none, there are from now on: nothing goes that is not archived."""
        while True:
            [document] = await self._documents.get([MARKS])
            if document is not None:
                self._version = document.version
                return msgspec.json.decode(document.body, type=Marks)
            await self._documents.put(MARKS, msgspec.json.encode(Marks()), 0)

    async def save(self, marks: Marks, state: JobState, progress: Progress) -> Marks | None:
        """Change the marks that were read last; None: somebody else was faster."""
        new = replace(marks, states=marks.states | {state.value: progress})
        if not await self._documents.put(MARKS, msgspec.json.encode(new), self._version):
            return None
        self._version += 1
        return new

    async def remove(self) -> None:
        """There is no vault any more: what is not archived may go."""
        [document] = await self._documents.get([MARKS])
        if document is not None:
            await self._documents.put(MARKS, None, document.version)
