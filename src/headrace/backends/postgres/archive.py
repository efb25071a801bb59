"""The ends of jobs on PostgreSQL, oldest first, and how many sweeps have removed."""

from __future__ import annotations

from uuid import UUID

from headrace.backends.archive import MARGIN, End
from headrace.backends.postgres.capability import Call, Capability, Send
from headrace.backends.states import CODES, STATES
from headrace.seam.archive import Mark, Removal
from headrace.seam.records import Stamp
from headrace.types import JobState

_FIRST = Mark(-1, bytes(16))
_LOOKS = 100


class PostgresEnds(Capability):
    """See :class:`headrace.backends.archive.ListEnds`.

    A transaction may end jobs, and commit long after that: then their ends appear among older ones. So every call looks
    which transactions may do that. Once all that were seen at an instant are gone, no end before it is still to come.
    (Between reading the clock and its first lock a call may wait, but not for longer than ``MARGIN``.)
    """

    def __init__(self, call: Call, send: Send) -> None:
        super().__init__(call, send)
        self._looks: list[tuple[int, frozenset[str]]] = []
        """When somebody looked, and which transactions there were; oldest first."""

    async def __call__(self, state: JobState, after: Mark | None, limit: int, at: Stamp) -> tuple[list[End], int]:
        final = await self._final(at)
        mark = after or _FIRST
        found = await self._call("ends", CODES[state], mark.ended_at, UUID(bytes=mark.id), limit)
        return [End(*row) for row in found], final

    async def _final(self, at: Stamp) -> int:
        [[now, transactions]] = await self._call("ending", at)
        open_ = frozenset(transactions)
        self._looks.append((now, open_))
        past = [n for n, (_, seen) in enumerate(self._looks) if seen.isdisjoint(open_)]
        if not past:
            del self._looks[_LOOKS // 2 : -_LOOKS // 2]
            return 0
        del self._looks[: past[-1]]
        return self._looks[0][0] - MARGIN


class PostgresRemovals(Capability):
    """See :class:`headrace.backends.archive.Removals`."""

    async def after(self, hour: int) -> list[Removal]:
        return sorted(
            Removal(found, STATES[state].value, task, tenant, jobs, size)
            for found, state, task, tenant, jobs, size in await self._call("removals", hour)
        )

    async def forget(self, most: int, limit: int) -> int:
        [[gone]] = await self._call("forget_removals", most, limit)
        return int(gone)
