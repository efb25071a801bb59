"""Changes of documents: read one, make another of it, store it if nobody else was faster."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import Unavailable
from headrace.seam.documents import DocumentStore

_TRIES = 20
"""How often a change is repeated if another one came first."""
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
