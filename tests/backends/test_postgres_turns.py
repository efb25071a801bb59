"""A turn on PostgreSQL that fails for what it settles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import Rejected
from headrace.seam.policy import Policy
from headrace.seam.records import Claim
from headrace.testing.conformance.base import LEASE, row, settle
from tests import postgres


async def test_an_outcome_that_is_refused_has_nobody_look_through_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is looked through when a claim fails, not for every outcome that the server does not take."""
    store = postgres.stores.connect(tmp_path)
    called: list[str] = []
    plain = store._call

    async def call(name: str, *params: Any) -> Any:
        called.append(name)
        return await plain(name, *params)

    monkeypatch.setattr(store, "_call", call)
    await store.open()
    try:
        await store.insert([row(1), row(2)])
        [job] = (await store.claim(Claim("w1", ("q",), 1, LEASE))).jobs
        with pytest.raises(Rejected):
            await store.finish_and_claim(
                [settle(job, result=b"r", result_ttl=2**63 - 1)], Claim("w1", ("q",), 1, LEASE)
            )
    finally:
        await store.close()
    assert "set_aside" not in called


async def test_what_waits_for_the_disk_is_prepared_once(tmp_path: Path) -> None:
    """A claim by turns sends a second statement, which the server parses only once per session."""
    store = postgres.stores.connect(tmp_path)
    await store.open()
    try:
        await store.policies.save(Policy(queue="q", tenant_batch=1))
        await store.insert([row(n, tenant=f"t{n}") for n in range(3)])
        for _ in range(3):
            assert (await store.claim(Claim("w1", ("q",), 1, LEASE))).jobs
        async with store._connections.session(0) as session:
            found = await session.execute("SELECT count(*) FROM pg_prepared_statements WHERE name ~ 'seal_v1'")
            assert await found.fetchone() == (1,)
    finally:
        await store.close()
