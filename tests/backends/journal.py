"""The memory store with a journal: the smallest store that outlives its process."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from headrace.backends.memory import MemoryBackend
from headrace.backends.memory.policies import MemoryPolicies
from headrace.seam.policy import Policy, QueuePause, TenantLimit
from headrace.seam.records import Stamp

_WRITES = ("insert", "claim", "finish", "finish_and_claim", "renew", "reap", "alter", "sweep")


class JournalBackend(MemoryBackend):
    """Writes down every call before it answers, and goes through them again when it is opened."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        self._path = place / "journal"
        self._replaying = False

    async def open(self) -> None:
        MemoryBackend.__init__(self)
        self.policies = _JournalledPolicies(self)
        self._replaying = True
        if self._path.exists():
            with self._path.open("rb") as file:
                while file.peek(1):
                    name, args = pickle.load(file)
                    done = getattr(self.policies, name, None) or getattr(super(), name)
                    await done(*args)
        self._replaying = False

    def sibling(self) -> JournalBackend:
        return type(self)(self._path.parent)

    def note(self, name: str, args: tuple[Any, ...]) -> None:
        """This was done."""
        if not self._replaying:
            with self._path.open("ab") as file:
                pickle.dump((name, args), file)


def _journalled(name: str) -> Any:
    async def call(self: JournalBackend, *args: Any) -> Any:
        answer = await getattr(super(JournalBackend, self), name)(*args)
        self.note(name, args)
        return answer

    return call


for _name in _WRITES:
    setattr(JournalBackend, _name, _journalled(_name))


class _JournalledPolicies(MemoryPolicies):
    def __init__(self, backend: JournalBackend) -> None:
        super().__init__(backend.store, backend._begin, backend.limits.count_cap)
        self._backend = backend

    async def save(self, policy: Policy, at: Stamp = None) -> bool:
        saved = await super().save(policy, at)
        self._backend.note("save", (policy, at))
        return saved

    async def limit(self, limit: TenantLimit, at: Stamp = None) -> None:
        await super().limit(limit, at)
        self._backend.note("limit", (limit, at))

    async def pause(self, pause: QueuePause, at: Stamp = None) -> None:
        await super().pause(pause, at)
        self._backend.note("pause", (pause, at))


class LazyJournalBackend(JournalBackend):
    """Answers first and writes later: what it said last is lost with its process."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._pending: tuple[str, tuple[Any, ...]] | None = None

    def note(self, name: str, args: tuple[Any, ...]) -> None:
        if self._pending is not None:
            super().note(*self._pending)
        self._pending = None if self._replaying else (name, args)

    async def close(self) -> None:
        if self._pending is not None:
            super().note(*self._pending)
            self._pending = None
