"""Events: what happened in one process, told to any other that listens.

They are for people who watch, and carry no truth. A message may get lost, come twice, or come late; the order of two
messages means nothing. Nothing is kept for those who come later. The store reads nothing of a message.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

LONGEST = 4_000
"""Bytes that a message may have."""


class Events(Protocol):
    """Messages between the processes of one store."""

    async def heard(self) -> bool:
        """Whether anybody listens now. It costs no more than the cheapest read, and may be wrong for a moment after a
        listener came or went. If nobody listens, nobody tells anything: so a process asks this now and then, and only
        while it has something to tell."""

    async def tell(self, messages: Sequence[bytes]) -> None:
        """Tell messages, of up to ``LONGEST`` bytes each, to everybody who listens, this process included. Never waits
        for a listener: one that does not keep up loses messages. Never raises: what cannot be told is lost."""

    def listen(self) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Once the context is entered, messages that are told from then on are delivered, unless they get lost, and
        ``heard`` says so. The iterator raises ``Unavailable`` when the store has gone away; then listen again. Anybody
        with access to the store may tell anything: a listener checks what it hears."""
