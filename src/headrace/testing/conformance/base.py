"""What the suite's parts share: the fixture, the builders, and collection by capability."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

import pytest
import pytest_asyncio
from msgspec.structs import fields

from headrace.seam.protocol import Backend, PolicyStore
from headrace.seam.records import Carried, Claim, Inserted, InsertStatus, JobId, Leased, Record, Row, Settlement
from headrace.types import JobState

F = TypeVar("F", bound=Callable[..., Any])

T0 = 1_800_000_000_000_000
"""The instant at which every test begins."""
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
LEASE = 30 * SECOND

CAPABILITIES = (
    "durable", "hints", "policies", "store_depth", "ticks", "references", "documents", "archive", "tracks",
    "tables", "finish_and_claim", "events", "journal", "parts", "usage", "reserve", "transfers", "strict_order",
    "weighs_wanted",
)  # fmt: skip

HOSTILE = (
    "a:b", "a/b", "../../etc", "..", ".", " ", "a b", "{x}", "*", "?", "[a]", "%s", "'; DROP TABLE jobs; --", '"q"',
    "\\", "ключ", "キー", "🙂", "a\tb", "é", "e\u0301", "NULL", "0", "-1", "x" * 1_024,
)  # fmt: skip
"""Names that have broken somebody's queue."""


def needs(*capabilities: str) -> Callable[[F], F]:
    """The test is collected only for backends that name the capabilities."""
    assert {*capabilities} <= {*CAPABILITIES}

    def mark(test: F) -> F:
        test.needs_capabilities = {*capabilities}  # type: ignore[attr-defined]
        return test

    return mark


OPTIONS: dict[str, Any] = {
    field.name: f"ü{n}" if str in get_args(field.type) else n for n, field in enumerate(fields(Carried), start=7)
}
"""A value for each option that stores carry."""


def job_id(number: int) -> JobId:
    """A valid id that sorts by its number."""
    return bytes.fromhex(f"0190{number:012x}70008000{0:08x}")


def number(job: Leased) -> int:
    """Which job it is, of those that ``row`` makes."""
    return int.from_bytes(job.id[2:8])


def row(number: int, **changes: Any) -> Row:
    """A plain job, due at once."""
    given: dict[str, Any] = {"queue": "q", "task": "t", "cells": {"parameters": b"{}"}}
    return Row(id=job_id(number), **(given | changes))


def settle(job: Leased, state: JobState = JobState.COMPLETED, holder: str = "w1", **changes: Any) -> Settlement:
    """The end of a lease that ``claim_all`` gave out."""
    return Settlement(job.id, job.epoch, holder, state, **changes)


@pytest.mark.asyncio
class ConformanceBase:
    """The store under test and short ways to use it."""

    capabilities: ClassVar[Collection[str]] = ()

    def connect(self, place: Path) -> Backend:
        """A new, unopened backend on the store that belongs to ``place``."""
        raise TypeError(f"{type(self).__name__} must say how to connect")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if unknown := set(cls.capabilities) - set(CAPABILITIES):
            raise TypeError(f"unknown capabilities {sorted(unknown)}; there are {CAPABILITIES}")
        if "capabilities" not in cls.__dict__:
            return
        for name in dir(cls):
            if getattr(getattr(cls, name), "needs_capabilities", set()) - {*cls.capabilities}:
                setattr(cls, name, None)

    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Backend]:
        """The opened backend."""
        backend = self.connect(tmp_path)
        await backend.open()
        try:
            yield backend
        finally:
            await backend.close()

    def policies(self, store: Backend) -> PolicyStore:
        """The capability, in tests that need it."""
        assert store.policies is not None
        return store.policies

    async def put(self, store: Backend, *rows: Row, at: int = T0) -> list[Inserted]:
        """Insert rows that must all be new."""
        answers = await store.insert(rows, at)
        assert [a.status for a in answers] == [InsertStatus.NEW] * len(rows)
        return answers

    async def take(
        self, store: Backend, limit: int = 100, *, holder: str = "w1", queues: tuple[str, ...] = ("q",), at: int = T0
    ) -> list[Leased]:
        """Claim."""
        return (await store.claim(Claim(holder, queues, limit, LEASE), at)).jobs

    async def take_one(self, store: Backend, *, holder: str = "w1", queue: str = "q", at: int = T0) -> Leased:
        """Claim exactly one job."""
        [job] = await self.take(store, 1, holder=holder, queues=(queue,), at=at)
        return job

    async def get(self, store: Backend, number: int, *want: str, at: int = T0) -> Record:
        """The record of a job that must exist."""
        [record] = await store.fetch([job_id(number)], frozenset(want), at)
        assert record is not None
        return record

    async def state(self, store: Backend, number: int, at: int = T0) -> JobState:
        """The state of a job that must exist."""
        return (await self.get(store, number, at=at)).state
