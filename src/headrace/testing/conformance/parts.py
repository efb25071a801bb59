"""parts: what running jobs send ahead, in order, each once, and bounded."""

from __future__ import annotations

import asyncio

from headrace.seam.parts import KEEP, KEPT, LARGEST, Part, PartStore, inbox_of
from headrace.seam.protocol import Backend
from headrace.testing.conformance.base import SECOND, T0, ConformanceBase, job_id, needs

JOB, OTHER = job_id(1), job_id(2)


def parts(*numbers: int, epoch: int = 1, job: bytes = JOB) -> list[Part]:
    return [Part(job, epoch, number, b"%d/%d" % (epoch, number)) for number in numbers]


class PartTests(ConformanceBase):
    def parts(self, store: Backend) -> PartStore:
        """The capability, in tests that need it."""
        assert store.parts is not None
        return store.parts

    @needs("parts")
    async def test_parts_are_read_as_they_were_sent(self, store: Backend) -> None:
        bodies = [b"", b"\0", bytes(range(256)), b"x" * LARGEST]
        sent = [Part(JOB, 2**62, n, body) for n, body in enumerate(bodies, start=1)]
        await self.parts(store).send(sent, T0)
        await self.parts(store).send(parts(1, job=OTHER), T0)
        assert await self.parts(store).read(JOB, (0, 0), at=T0) == sent
        assert await self.parts(store).read(JOB, (2**62, 1), 2, T0) == sent[1:3]
        assert await self.parts(store).read(JOB, (2**62, 4), at=T0) == []
        assert await self.parts(store).read(OTHER, (0, 0), at=T0) == parts(1, job=OTHER)
        assert await self.parts(store).read(job_id(3), (0, 0), at=T0) == []

    @needs("parts")
    async def test_what_is_repeated_changes_nothing(self, store: Backend) -> None:
        await self.parts(store).send(parts(1, 2), T0)
        await self.parts(store).send([Part(JOB, 1, 2, b"again"), *parts(3), Part(JOB, 1, 1, b"again")], T0)
        assert await self.parts(store).read(JOB, (0, 0), at=T0) == parts(1, 2, 3)

    @needs("parts")
    async def test_a_later_run_begins_again(self, store: Backend) -> None:
        """What an earlier run has sent goes, and what it sends from now on is not kept."""
        await self.parts(store).send(parts(1, 2, 3), T0)
        await self.parts(store).send(parts(1, epoch=5), T0)
        await self.parts(store).send(parts(4), T0)
        assert await self.parts(store).read(JOB, (1, 1), at=T0) == parts(1, epoch=5)
        await self.parts(store).send([*parts(2, epoch=5), *parts(1, epoch=6)], T0)
        assert await self.parts(store).read(JOB, (5, 1), at=T0) == parts(1, epoch=6)

    @needs("parts")
    async def test_the_latest_are_kept(self, store: Backend) -> None:
        for first in range(1, KEPT + 200, 100):
            await self.parts(store).send(parts(*range(first, first + 100)), T0)
        found = await self.parts(store).read(JOB, (0, 0), KEPT + 100, T0)
        assert [part.number for part in found] == list(range(201, KEPT + 201))

    @needs("parts")
    async def test_a_part_is_kept_for_a_while(self, store: Backend) -> None:
        await self.parts(store).send(parts(1), T0)
        await self.parts(store).send(parts(1, job=OTHER), T0 + KEEP - 1)
        assert await self.parts(store).read(JOB, (0, 0), at=T0 + KEEP - 1) == parts(1)

    @needs("parts", "hints")
    async def test_listeners_get_a_hint(self, store: Backend) -> None:
        assert store.hints is not None
        async with store.hints.listen([f"inbox:{inbox_of(JOB)}"]) as hints:
            await self.parts(store).send(parts(1), T0)
            async with asyncio.timeout(60):
                assert (await anext(hints)).id == JOB

    @needs("parts")
    async def test_of_two_runs_at_once_the_later_one_stays(self, store: Backend) -> None:
        sibling = store.sibling()
        await sibling.open()
        try:
            await asyncio.gather(
                *(self.parts(one).send(parts(n, epoch=epoch), T0 + SECOND)
                  for epoch, one in ((1, store), (2, sibling)) for n in range(1, 11))
            )  # fmt: skip
        finally:
            await sibling.close()
        found = await self.parts(store).read(JOB, (2, 0), at=T0 + SECOND)
        assert found
        assert {part.epoch for part in found} == {2}
        assert [part.number for part in found] == sorted({part.number for part in found})
