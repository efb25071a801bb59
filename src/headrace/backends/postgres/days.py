"""Days are made ahead and dropped as a whole, by one process at a time for the whole store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from psycopg import AsyncConnection

from headrace.backends.postgres.connections import Connections
from headrace.backends.postgres.translate import translated
from headrace.backends.states import CODES, STATES
from headrace.errors import BackendError, ConfigError, Unavailable
from headrace.seam.records import Stamp, SweepClause, SweepTarget
from headrace.types import JobState

_DUTY = "days"
_DAY = 86_400_000_000
_ENDS = (SweepTarget.COMPLETED, SweepTarget.CANCELLED, SweepTarget.FAILED)
_LIMIT = 60.0
"""Seconds that a step may take: more than a call, as nobody waits for it."""
_GRACE = 5.0
"""Seconds more until a silent server counts as gone."""
_SPAN = 10.0
"""Seconds after which the rest is left for the next run: sweeps wait meanwhile."""
_LOOK = 0.2
"""Seconds between two looks at which transactions have locked the tables."""
_STEP = 50_000
"""Jobs of a dropped day that are counted off at once."""


class Days:
    """Upkeep of the partitions, on a connection of its own. Each step is a transaction, and fails by itself.

    A table is locked only while no transaction that lasts uses it: all others would wait behind the two.
    """

    def __init__(
        self,
        connections: Callable[[], Connections],
        call: Callable[..., Awaitable[list[Any]]],
        statements: Callable[[], Mapping[str, str]],
    ) -> None:
        self._connections = connections
        self._call = call
        self._statements = statements

    async def tidy(self, clauses: Sequence[SweepClause], at: Stamp = None) -> dict[SweepTarget, int]:
        """See ``Tidy``."""
        [[mine]] = await self._call("begin_duty", at, _DUTY)
        if not mine:
            return {}
        async with self._connections().connection() as connection:
            tidying = _Tidying(connection, self._connections().where, self._statements(), at)
            try:
                await tidying.run(clauses)
            finally:
                await self._call("end_duty", at, _DUTY, tidying.busy, tidying.more)
        return tidying.gone


class _Tidying:
    """One run."""

    def __init__(self, connection: AsyncConnection[Any], where: str, statements: Mapping[str, str], at: Stamp) -> None:
        self._connection = connection
        self._where = where
        self._statements = statements
        self._at = at
        self._until = asyncio.get_running_loop().time() + _SPAN
        self.gone: dict[SweepTarget, int] = {}
        self.busy = True
        """Whether somebody was in the way, or something went wrong."""
        self.more = False
        """Whether there was no time for all of it."""

    async def run(self, clauses: Sequence[SweepClause]) -> None:
        problems: list[Exception] = []
        waited = False
        for step in (self._settle, self._make, lambda: self._drop(clauses), self._settle, self._forget):
            try:
                waited = await step() or waited
            except (BackendError, ConfigError) as error:
                problems.append(error)
        if problems:
            raise problems[0]
        self.busy = waited

    async def _make(self) -> bool:
        """Make the days to come; whether somebody was in the way. Between two steps, those who waited get as much
        time as the step took."""
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            [[more]] = await self._do("make_day", self._at)
            if not more:
                return more is None
            if self._is_late():
                return False
            await asyncio.sleep(clock() - began)

    async def _drop(self, clauses: Sequence[SweepClause]) -> bool:
        """Drop the days that are past a clause; whether somebody was in the way."""
        ages = {
            CODES[JobState(clause.target.value)]: clause.older_than
            for clause in clauses
            if clause.target in _ENDS and clause.older_than is not None and clause.older_than >= _DAY
        }
        for state, age in ages.items():
            done: bool | None = True
            while done and not self._is_late():
                if await self._in_use():
                    return True
                [[done]] = await self._do("drop_day", self._at, state, age)
            if done is False:
                return True
        return False

    async def _in_use(self) -> bool:
        """Whether a transaction that lasts uses the tables."""
        [[before]] = await self._do("lockers")
        if before:
            await asyncio.sleep(_LOOK)
            [[after]] = await self._do("lockers")
            return not set(before).isdisjoint(after)
        return False

    async def _settle(self) -> bool:
        """Count off the jobs of dropped days."""
        while rows := await self._do("settle_day", _STEP):
            [[state, removed]] = rows
            place = SweepTarget(STATES[state].value)
            self.gone[place] = self.gone.get(place, 0) + removed
            if self._is_late():
                break
        return False

    async def _forget(self) -> bool:
        """Forget the names of unused queues."""
        while not self._is_late():
            [[more]] = await self._do("forget_queues", self._at)
            if not more:
                break
        return False

    def _is_late(self) -> bool:
        late = asyncio.get_running_loop().time() > self._until
        self.more = self.more or late
        return late

    async def _do(self, name: str, *params: Any) -> list[Any]:
        try:
            async with asyncio.timeout(_LIMIT + _GRACE), self._connection.transaction():
                await self._connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
                await self._connection.execute(f"SET LOCAL statement_timeout = {int(_LIMIT * 1_000)}")
                cursor = await self._connection.execute(self._statements[name], params, binary=True)
                return await cursor.fetchall()
        except TimeoutError as error:
            raise Unavailable(f"{self._where}: no answer in {_LIMIT + _GRACE:.3g} s") from error
        except Exception as error:
            raise translated(error, self._where) from error
