"""Run the pipeline for some days of virtual time: ``python run.py --days 10 --items 2400``."""

from __future__ import annotations

import argparse
import asyncio
import tempfile

from discovery import Discovery, Pages
from video_api import VideoApi

from headrace import App, Client, Settings
from headrace.backends.sqlite import SqliteBackend
from headrace.core.clock import ManualClock

TERMS = ("cats", "dogs", "birds", "trains")


async def run(folder: str, days: int, items: int) -> list[dict[str, int]]:
    """A line for every day: rows and bytes of the hot table, subjects, what was archived."""
    clock, pages = ManualClock(), Pages()
    client = Client(
        SqliteBackend(f"{folder}/jobs.db", durability="normal"), Settings.load({}, env={}, toml={}), clock=clock
    )
    app = App(client)
    pipeline = Discovery(app, VideoApi(items // 24 // len(TERMS)), pages)
    lines = []
    async with app:
        await pipeline.videos.create()
        await pipeline.hunt.add_many(TERMS)
        for day in range(1, days + 1):
            for _ in range(24):
                await app.drain()
                clock.advance("1h")
            stats, count = await pipeline.videos.stats(), await pipeline.watch.count()
            lines.append(
                {"day": day, "rows": stats.rows, "bytes": stats.bytes, "subjects": count, "archived": pages.rows}
            )
    return lines


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
