"""An insert takes one transaction id: a hundred million jobs a day leave the server time to freeze old ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.seam.records import InsertStatus, Row
from headrace.testing.conformance.base import row
from tests import postgres

MANY = 200


class _Silent:
    """Tells nobody: notifications are sent for many inserts at once, in transactions of their own."""

    def send(self, told: Any) -> None:
        pass

    def count(self, topic: str, jobs: int) -> None:
        pass

    def along(self, topic: str) -> None:
        pass

    async def flush(self) -> None:
        pass


def _next_id(connection: psycopg.Connection[Any]) -> int:
    [[found]] = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    return int(found)


@pytest.mark.parametrize("kind", ["plain", "keyed", "waited for", "of a group"])
async def test_an_insert_takes_one_transaction_id(tmp_path: Path, kind: str) -> None:
    def make(n: int) -> Row:
        match kind:
            case "keyed":
                return row(n, key=f"k{n}")
            case "waited for":
                return row(n, reply_to="inbox")
            case "of a group":
                return row(n, group=f"g{n % 7}")
        return row(n)

    store = postgres.stores.connect(tmp_path)
    await store.open()
    store._notifier = _Silent()  # type: ignore[assignment]
    with psycopg.connect(postgres.server().url(), autocommit=True) as other:
        await store.insert([make(MANY)])
        first = _next_id(other)
        for n in range(MANY):
            [answer] = await store.insert([make(n)])
            assert answer.status is InsertStatus.NEW
        taken = _next_id(other) - first
    await store.close()
    assert MANY <= taken < 1.1 * MANY, "but for what the server does by itself"
