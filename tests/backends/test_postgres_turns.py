"""A turn on PostgreSQL that fails for what it settles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import Rejected
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
