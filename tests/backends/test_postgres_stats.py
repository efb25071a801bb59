"""Statistics of thousands of queues on PostgreSQL: a few pages each."""

from __future__ import annotations

from pathlib import Path

import psycopg

from headrace.seam.records import Row
from tests.postgres import server, stores


def _row(number: int) -> Row:
    return Row(bytes.fromhex(f"0190{number:028x}"), f"q{number}", "t", {}, priority=number % 3)


async def test_a_queue_more_costs_a_few_pages(tmp_path: Path) -> None:
    few, many = 50, 500
    store = stores.connect(tmp_path)
    await store.open()
    found = []
    with psycopg.connect(server().url(), autocommit=True) as other:

        def pages() -> int:
            [[told]] = other.execute(
                "EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT * FROM headrace.stats_v1(NULL, 100)"
            )
            plan = told[0]["Plan"]
            return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

        for start, end in ((0, few), (few, many)):
            await store.insert([_row(number) for number in range(start, end)])
            pages()  # what the session has to learn first
            found.append(pages())
    assert len((await store.stats()).queues) == many
    await store.close()
    assert found[1] - found[0] < 25 * (many - few), f"pages beside {few} and {many} queues: {found}"
