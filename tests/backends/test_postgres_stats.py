"""Statistics of thousands of queues on PostgreSQL: a few pages each."""

from __future__ import annotations

from pathlib import Path

import psycopg
from servers.postgres import Postgres

from headrace.backends.postgres import PostgresBackend
from headrace.seam.records import Row
from tests.ending import over
from tests.postgres import root, server, stores


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


async def test_calls_that_were_slow_on_average_are_told_where_the_server_counts_them() -> None:
    counting = Postgres(root(), {"fsync": "off", "shared_preload_libraries": "pg_stat_statements"})
    over.callback(counting.close)
    counting.start()
    store = PostgresBackend(counting.url(), schema="odd \"schema'", listen=False)
    await store.open()
    assert "statements" not in [check for _, check, *_ in await store.checks()]
    with psycopg.connect(counting.url(), autocommit=True) as other:
        other.execute("CREATE SCHEMA extras; CREATE EXTENSION pg_stat_statements SCHEMA extras")
        await store.insert([_row(1)])
        assert "statements" not in [check for _, check, *_ in await store.checks()]
        place = '"odd ""schema\'"'
        for name in ("claim_v1", "make_day_v1"):
            function = f"{place}.{name}(seconds float)"
            other.execute(f"CREATE FUNCTION {function} RETURNS text LANGUAGE sql AS 'SELECT pg_sleep(seconds)::text'")
            other.execute(f"SELECT * FROM {place}.{name}(%s)", (0.07,))
    [(level, _, what, _)] = [fact for fact in await store.checks() if fact[1] == "statements"]
    await store.close()
    assert level == "warn"
    assert what.startswith("slow, according to pg_stat_statements: claim ")
    assert "day" not in what
    counting.close()
