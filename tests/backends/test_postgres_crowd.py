"""Many idle workers on PostgreSQL: one job wakes one of them, not all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from headrace.backends.postgres import PostgresBackend, crowd
from headrace.backends.postgres.crowd import EVERYBODY, Crowd, note, quiet
from headrace.seam.records import Beat, Claim, Hint, Row
from tests.postgres import stores

LEASE = 60_000_000


class Listener:
    """One of a crowd, and the topics that it was told to look at."""

    def __init__(self, rank: int, size: int) -> None:
        self.crowd = Crowd()
        self.crowd._ranks = {"queue:q": (rank, size)}
        self.looked: list[str] = []

    def hear(self, payload: str) -> None:
        self.crowd.hear("queue:q", payload, self.looked.append)

    @property
    def waits(self) -> bool:
        return bool(self.crowd._waiting)


@pytest.fixture
async def listeners() -> AsyncIterator[list[Listener]]:
    found = [Listener(rank, 24) for rank in range(24)]
    yield found
    for one in found:
        one.crowd.leave()


@pytest.mark.parametrize("jobs", [1, 3, 24, 1_000])
async def test_as_many_look_at_once_as_there_are_jobs(listeners: list[Listener], jobs: int) -> None:
    for one in listeners:
        one.hear(note(jobs, 12_345))
    assert sum(map(len, [one.looked for one in listeners])) == min(jobs, 24)
    assert all(one.waits or one.looked for one in listeners)


async def test_each_time_others_look_first(listeners: list[Listener]) -> None:
    for token in range(500):
        for one in listeners:
            one.hear(note(1, token))
    assert all(one.looked for one in listeners)


async def test_who_hears_that_nothing_is_left_does_not_look(listeners: list[Listener]) -> None:
    for one in listeners:
        one.hear(note(1, 7))
        one.hear(note(1, 8))
    [first] = [one for one in listeners if one.crowd.looks(["q"]).get("queue:q", {}).get(f"{7:08x}")]
    assert first.looked
    for one in listeners:
        one.hear(quiet([f"{7:08x}"], None))
    assert {token for one in listeners for _, token in one.crowd._waiting} == {f"{8:08x}"}


async def test_all_look_in_the_end_where_nobody_says_so(listeners: list[Listener]) -> None:
    for one in listeners:
        one.hear(note(1, 7))
    async with asyncio.timeout(30):
        while not all(one.looked for one in listeners):
            await asyncio.sleep(0.01)


async def test_who_is_alone_looks_at_once_and_so_do_all_where_everybody_is_meant(listeners: list[Listener]) -> None:
    alone = Listener(0, 1)
    for payload in (note(1, 7), EVERYBODY, "anything", "1." + "x" * 100):
        alone.hear(payload)
    assert len(alone.looked) == 4
    for one in listeners:
        one.hear(EVERYBODY)
    assert all(one.looked for one in listeners)


@pytest.mark.parametrize(
    "payload", ["-", "-.", "-9.", "-x.y", "-" + "9" * 100 + ".a", ".", "9" * 100 + ".a", "-1", "²"]
)
async def test_a_stranger_s_note_does_no_harm(listeners: list[Listener], payload: str) -> None:
    for one in listeners:
        one.hear(payload)


async def test_what_is_to_come_is_looked_for_by_all_when_it_is_due(listeners: list[Listener]) -> None:
    for one in listeners:
        one.hear(quiet(["a"], 1_000))
    async with asyncio.timeout(30):
        while not all(one.looked for one in listeners):
            await asyncio.sleep(0.01)


@asynccontextmanager
async def hearing(store: PostgresBackend, holder: str) -> AsyncIterator[list[Hint]]:
    """What a worker hears."""
    heard: list[Hint] = []

    async def hear(hints: AsyncIterator[Hint]) -> None:
        async for hint in hints:
            heard.append(hint)

    await store.renew(Beat(holder, holder, ("q",), LEASE))
    async with store.hints.listen(["queue:q", f"holder:{holder}"]) as hints, asyncio.TaskGroup() as group:
        task = group.create_task(hear(hints))
        try:
            yield heard
        finally:
            task.cancel()


async def test_one_of_the_workers_takes_the_job_and_tells_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowd, "_STEP", 600.0)
    monkeypatch.setattr(crowd, "_LONGEST_STEP", 600.0)
    backends = [stores.connect(tmp_path) for _ in range(4)]
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        for one in backends:
            await one.open()
            stack.push_async_callback(one.close)
        heard = [await stack.enter_async_context(hearing(one, f"h{n}")) for n, one in enumerate(backends)]
        while any(one._crowd._ranks.get("queue:q", (0, 0))[1] != 4 for one in backends):
            await asyncio.sleep(0.05)
        await backends[0].insert([Row(id=bytes.fromhex(f"0190{0:028x}"), queue="q", task="t", cells={})])
        while sum(map(bool, heard)) != 1 or sum(bool(one._crowd._waiting) for one in backends) != 3:
            await asyncio.sleep(0.01)
        [number] = [n for n, hints in enumerate(heard) if hints]
        claimed = await backends[number].claim(Claim(f"h{number}", ("q",), 10, LEASE))
        assert len(claimed.jobs) == 1
        while any(one._crowd._waiting for one in backends):
            await asyncio.sleep(0.01)
        assert sum(map(len, heard)) == 1
