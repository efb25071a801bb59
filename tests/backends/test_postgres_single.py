"""A single job is one statement, by the short way where it is plain."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.backends.postgres import PostgresBackend
from headrace.seam.policy import Policy
from headrace.testing.conformance.base import row
from tests import postgres


def _counted(store: PostgresBackend) -> Counter[str]:
    """How often the store calls which function."""
    called: Counter[str] = Counter()
    call, value = store._call, store._value

    async def counted_call(name: str, *given: Any) -> Any:
        called[name] += 1
        return await call(name, *given)

    async def counted_value(name: str, *given: Any) -> Any:
        called[name] += 1
        return await value(name, *given)

    store._call, store._value = counted_call, counted_value  # type: ignore[method-assign]
    return called


async def test_a_plain_job_takes_the_short_way(tmp_path: Path) -> None:
    store = postgres.stores.connect(tmp_path)
    assert isinstance(store, PostgresBackend)
    await store.open()
    await store.insert([row(0)])  # now the queue is known
    called = _counted(store)
    for n in range(1, 11):
        await store.insert([row(n)])
    await store.close()
    assert called == {"insert_one": 10}


@pytest.mark.parametrize("queue", ["q", ""])
async def test_where_there_are_rules_it_is_one_statement_too(tmp_path: Path, queue: str) -> None:
    store = postgres.stores.connect(tmp_path)
    assert isinstance(store, PostgresBackend)
    await store.open()
    assert store.policies is not None
    await store.policies.save(Policy(queue=queue, depth=1_000))
    await store.insert([row(0)])
    called = _counted(store)
    for n in range(1, 11):
        await store.insert([row(n)])
    await store.close()
    assert called["insert_new"] == 10
    assert called["insert_one"] < 10, "on a slow machine it is tried again"
