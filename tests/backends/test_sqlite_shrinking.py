"""A SQLite file gets smaller when it is told to, while others work on it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headrace.backends.sqlite import SqliteBackend
from headrace.seam.records import Claim, Delete, Row, Selector


def row(number: int, size: int = 10) -> Row:
    return Row(id=number.to_bytes(16), queue="q", task="t", cells={"blob": bytes([number % 256]) * size})


async def test_what_is_not_used_goes_back_and_nothing_is_lost(tmp_path: Path) -> None:
    store, other = (SqliteBackend(tmp_path / "jobs.db", durability="normal") for _ in range(2))
    await store.open()
    await other.open()
    await store.insert([row(n, 40_000) for n in range(100)])
    await store.insert([row(n) for n in range(100, 110)])
    await store.alter(Selector(ids=[n.to_bytes(16) for n in range(100)]), Delete())
    assert (await store.usage()).parts["free"] > 3_000_000
    shrunk, answers = await asyncio.gather(store.shrink(), other.insert([row(n) for n in range(110, 120)]))
    assert len(answers) == 10
    before, after = shrunk
    assert after < before / 4
    assert (await other.usage()).parts["free"] < 100_000
    jobs = (await other.claim(Claim("h", ("q",), 100, 10**9))).jobs
    assert [(job.id, job.cells) for job in jobs] == [(row(n).id, row(n).cells) for n in range(100, 120)]
    await store.close()
    await other.close()
