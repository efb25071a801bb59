"""Parts on Valkey: for each job a sorted set whose members begin with epoch and number, so that they sort by them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

from headrace.backends.redis.connections import Connections
from headrace.backends.redis.scripts import run
from headrace.backends.redis.translate import refusals
from headrace.seam.parts import KEEP, KEPT, Part, inbox_of
from headrace.seam.records import JobId, Stamp

_NUMBER, _BODY = 8, 16


class RedisParts:
    """See :class:`headrace.seam.parts.PartStore`. ``base_of``: the keys under which the parts of a job are, by the name
    of its inbox."""

    def __init__(self, connections: Connections, base_of: Callable[[str], str], where: str) -> None:
        self._connections = connections
        self._base_of = base_of
        self._where = where

    async def send(self, batch: Sequence[Part], at: Stamp = None) -> None:
        by_job: defaultdict[JobId, list[bytes]] = defaultdict(list)
        for part in batch:
            by_job[part.job].append(_place(part.epoch, part.number) + part.body)
        await asyncio.gather(*(self._send(job, parts) for job, parts in by_job.items()))

    async def _send(self, job: JobId, parts: Sequence[bytes]) -> None:
        inbox = inbox_of(job)
        await run(
            self._connections, self._where, "parts", self._base_of(inbox), (inbox, job, KEEP // 1_000, KEPT, *parts)
        )

    async def read(self, job_id: JobId, after: tuple[int, int], limit: int = 100, at: Stamp = None) -> list[Part]:
        base = self._base_of(inbox_of(job_id))
        first = b"[" + _place(after[0], after[1] + 1)
        with refusals(self._where, base):
            found = await self._connections.call(
                base, "ZRANGEBYLEX", f"{base}:parts:{inbox_of(job_id)}", first, "+", "LIMIT", 0, limit
            )
        return [
            Part(job_id, int.from_bytes(one[:_NUMBER]), int.from_bytes(one[_NUMBER:_BODY]), one[_BODY:])
            for one in found
        ]


def _place(epoch: int, number: int) -> bytes:
    return epoch.to_bytes(8, "big") + number.to_bytes(8, "big")
