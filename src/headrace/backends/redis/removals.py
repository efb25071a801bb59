"""How many ended jobs sweeps have removed, on Valkey; what the fields look like is in ``removals.lua``."""

from __future__ import annotations

from struct import Struct

from headrace.backends.redis import marshalling
from headrace.backends.redis.capability import Capability
from headrace.backends.states import STATES
from headrace.seam.archive import Removal

_FIELD = Struct(">IBI")


class RedisRemovals(Capability):
    """See :class:`headrace.backends.archive.Removals`."""

    async def after(self, hour: int) -> list[Removal]:
        return sorted(_removal(*found) for found in marshalling.tuples(await self._run("removals", hour), 3))

    async def forget(self, most: int, limit: int) -> int:
        gone, _ = await self._run("forget_removals", most, limit)
        return int(gone)

    async def count(self) -> int:
        """How many counts there are."""
        _, kept = await self._run("forget_removals", 0, 0)
        return int(kept)


def _removal(field: bytes, jobs: bytes, size: bytes) -> Removal:
    hour, state, length = _FIELD.unpack_from(field)
    names = field[_FIELD.size :]
    task, tenant = (part.decode("utf-8", "backslashreplace") for part in (names[:length], names[length:]))
    return Removal(hour, STATES[state].value, task, tenant, int(jobs), int(size))
