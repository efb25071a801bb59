"""A memory backend whose claims can be changed step by step, for stores with a planted fault."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from headrace.backends.memory import MemoryBackend
from headrace.backends.memory.claiming import Claiming
from headrace.backends.memory.entry import Entry
from headrace.backends.memory.leasing import Leasing
from headrace.seam.records import Claim, Claimed, Leased


class HookedBackend(MemoryBackend):
    """Each step of a claim is a method of its own."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._claiming = _Hooks(self)

    def _claim(self, req: Claim, now: int) -> Claimed:
        return Claiming.claim(self._claiming, req, now)

    def _candidates(self, queues: Sequence[str], now: int) -> Generator[Entry, None, None]:
        return Claiming._candidates(self._claiming, queues, now)

    def _lease(self, entry: Entry, req: Claim, now: int) -> Leased:
        return Leasing._lease(self._claiming._leasing, entry, req, now)


class _Hooks(Claiming):
    def __init__(self, backend: HookedBackend) -> None:
        super().__init__(backend.store, _HookedLeasing(backend))
        self._backend = backend

    def claim(self, req: Claim, now: int) -> Claimed:
        return self._backend._claim(req, now)

    def _candidates(self, queues: Sequence[str], now: int) -> Generator[Entry, None, None]:
        return self._backend._candidates(queues, now)


class _HookedLeasing(Leasing):
    def __init__(self, backend: HookedBackend) -> None:
        super().__init__(backend.store)
        self._backend = backend

    def _lease(self, entry: Entry, req: Claim, now: int) -> Leased:
        return self._backend._lease(entry, req, now)
