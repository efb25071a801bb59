"""The example of discovery: ten days of virtual time, small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from discovery import Discovery, Pages
from video_api import VideoApi

from headrace import App, Client, Settings
from headrace.backends.sqlite import SqliteBackend
from headrace.core.clock import ManualClock

RUN = Path(__file__).parents[2] / "examples" / "discovery" / "run.py"


async def test_the_hot_table_stays_small_and_nothing_is_forgotten(tmp_path: Path) -> None:
    clock, pages = ManualClock(), Pages()
    backend = SqliteBackend(tmp_path / "jobs.db", durability="normal")
    app = App(Client(backend, Settings.load({}, env={}, toml={}), clock=clock))
    pipeline = Discovery(app, VideoApi(2), pages, keep="2d", tiers={"DAILY": "1d", "WEEKLY": "7d"})
    rows, size = [], []
    async with app:
        await pipeline.videos.create()
        await pipeline.hunt.add_many(["cats", "dogs"])
        for _ in range(5):
            for _ in range(8):
                await app.drain()
                clock.advance("3h")
            stats = await pipeline.videos.stats()
            rows.append(stats.rows)
            size.append(stats.bytes)
            assert stats.waiting == 0
        found = 2 * 2 * 8 * 5
        assert rows[0] == 32
        assert max(rows[2:]) <= 32 * 2 + 8
        assert size[4] <= size[2] * 1.2
        tracked = await pipeline.watch.count()
        assert found * 0.9 <= tracked <= found
        cursor = await pipeline.hunt.get("cats")
        assert cursor is not None
        assert cursor.pages == 40
    archived = sum(1 for name, _, _ in pages.names if name == "videos")
    assert archived > 0


def test_the_program_runs(tmp_path: Path) -> None:
    given = [sys.executable, str(RUN), "--days", "1", "--items", "96"]
    done = subprocess.run(given, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "day 1  rows 96" in done.stdout
