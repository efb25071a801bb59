"""A backend that counts: every trip to the store, every job that came and went, every statement underneath."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any


class Probe:
    """Stands in for a Headrace backend and passes everything on."""

    def __init__(self, backend: Any) -> None:
        from headrace import JobState

        self._completed = JobState.COMPLETED
        self._backend = backend
        self.trips: Counter[str] = Counter()
        self.settled = 0
        self.claims: list[int] = []
        """Jobs that each claim brought."""
        self._goal = 0
        self._reached: Callable[[int], None] | None = None

    def expect(self, count: int, reached: Callable[[int], None]) -> None:
        """Count from zero, and tell the instant at which the store has acknowledged so many jobs as completed."""
        self.trips.clear()
        self.claims.clear()
        self.settled, self._goal, self._reached = 0, count, reached

    @property
    def finish_and_claim(self) -> Any:
        return None if self._backend.finish_and_claim is None else self._finish_and_claim

    async def finish(self, batch: Sequence[Any], at: Any = None) -> Any:
        self.trips["finish"] += 1
        states = await self._backend.finish(batch, at)
        self._note(states)
        return states

    async def claim(self, req: Any, at: Any = None) -> Any:
        self.trips["claim"] += 1
        claimed = await self._backend.claim(req, at)
        self.claims.append(len(claimed.jobs))
        return claimed

    async def _finish_and_claim(self, batch: Sequence[Any], req: Any, at: Any = None) -> Any:
        self.trips["finish_and_claim"] += 1
        states, claimed = await self._backend.finish_and_claim(batch, req, at)
        self.claims.append(len(claimed.jobs))
        self._note(states)
        return states, claimed

    def sibling(self) -> Any:
        other = Probe(self._backend.sibling())
        other.trips = self.trips
        return other

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        if name in ("insert", "renew", "reap", "alter", "fetch", "scan", "stats", "sweep"):
            self.trips[name] += 1
        return found

    def _note(self, states: Sequence[Any]) -> None:
        self.settled += states.count(self._completed)
        if self._reached is not None and self.settled >= self._goal:
            self._reached(time.perf_counter_ns())
            self._reached = None


class Forgetful(Probe):
    """Leaves no record of a job that has completed."""

    async def finish(self, batch: Sequence[Any], at: Any = None) -> Any:
        return await super().finish(_forgotten(batch), at)

    async def _finish_and_claim(self, batch: Sequence[Any], req: Any, at: Any = None) -> Any:
        return await super()._finish_and_claim(_forgotten(batch), req, at)


def _forgotten(batch: Sequence[Any]) -> list[Any]:
    from msgspec.structs import replace

    return [replace(settlement, keep=False) for settlement in batch]


class Statements:
    """Counts the SQL statements of every apsw connection opened from now on."""

    def __init__(self) -> None:
        import apsw

        self._apsw = apsw
        self.counts: Counter[str] = Counter()
        self.writes = 0
        apsw.connection_hooks.append(self._hook)

    def clear(self) -> None:
        """Count from zero."""
        self.counts.clear()
        self.writes = 0

    def summary(self) -> dict[str, int]:
        """How many statements, how many of them write, how many transactions were committed."""
        return {
            "statements": sum(self.counts.values()),
            "write_statements": self.writes,
            "commits": self.counts["COMMIT"] + self.counts["END"] + self.counts["RELEASE"],
        }

    def _hook(self, connection: Any) -> None:
        connection.trace_v2(self._apsw.SQLITE_TRACE_STMT, self._note, id=self)

    def _note(self, event: dict[str, Any]) -> None:
        if not event.get("trigger"):
            words = event["sql"].split(None, 1)
            verb = words[0].upper().rstrip(";") if words else ""
            self.counts[verb] += 1
            self.writes += not event["readonly"] and verb != "BEGIN"
