"""Run the pipeline for some days of virtual time: ``python run.py --days 10 --items 2400``."""

from __future__ import annotations

import argparse
import asyncio
import tempfile

from discovery import Discovery
from video_api import VideoApi

from headrace import App, Client, Settings
from headrace.backends.sqlite import SqliteBackend
from headrace.core.clock import ManualClock

TERMS = ("cats", "dogs", "birds", "trains")


async def run(folder: str, days: int, items: int) -> list[dict[str, int]]:
    """A line for every day: rows and bytes of the hot table, subjects, rows in the vault."""
    clock, settings = ManualClock(), Settings.load({"vault": {"url": f"file://{folder}/vault"}}, env={}, toml={})
    app = App(Client(SqliteBackend(f"{folder}/jobs.db", durability="normal"), settings, clock=clock))
    pipeline = Discovery(app, VideoApi(items // 24 // len(TERMS)))
    lines = []
    async with app:
        await pipeline.videos.create()
        await pipeline.hunt.add_many(TERMS)
        for day in range(1, days + 1):
            for _ in range(24):
                await app.drain()
                clock.advance("1h")
            await app.vault.archive()
            await app.vault.compact()
            stats, count = await pipeline.videos.stats(), await pipeline.watch.count()
            line = {"day": day, "rows": stats.rows, "bytes": stats.bytes, "subjects": count}
            lines.append(line | {f"{table} in the vault": await in_vault(app, table) for table in ("videos", "watch")})
    return lines


async def in_vault(app: App, table: str) -> int:
    """How many rows of a table were archived."""
    if table not in await app.vault.tables():
        return 0
    [row] = await app.vault.query(f"SELECT count(*) AS rows FROM {table}")
    return int(row["rows"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--items", type=int, default=2_400, help="videos a day")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for line in asyncio.run(run(folder, given.days, given.items)):
            print("  ".join(f"{name} {value:,}" for name, value in line.items()), flush=True)


if __name__ == "__main__":
    main()
