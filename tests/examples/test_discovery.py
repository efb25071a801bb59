"""The example of discovery: ten days of virtual time, small."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

from discovery import Discovery
from video_api import VideoApi

from headrace import App, Client, Settings
from headrace.backends.sqlite import SqliteBackend
from headrace.core.clock import ManualClock

RUN = Path(__file__).parents[2] / "examples" / "discovery" / "run.py"


async def test_the_hot_table_stays_small_and_nothing_is_forgotten(tmp_path: Path) -> None:
    clock = ManualClock()
    backend = SqliteBackend(tmp_path / "jobs.db", durability="normal")
    settings = Settings.load({"vault": {"url": f"file://{tmp_path}/vault"}}, env={}, toml={})
    app = App(Client(backend, settings, clock=clock))
    pipeline = Discovery(app, VideoApi(2), keep="2d", tiers={"DAILY": "1d", "WEEKLY": "7d"})
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
        [archived] = await app.vault.query("SELECT count(*) AS rows, count(DISTINCT id) AS ids FROM videos")
        assert archived["rows"] == archived["ids"] == found - rows[-1]
        [seen] = await app.vault.query("SELECT count(*) AS rows, count(DISTINCT (id, watch.at)) AS visits FROM watch")
        assert seen["rows"] == seen["visits"] > found
        assert (await app.vault.verify()).problems == []


def test_workers_run_it(tmp_path: Path) -> None:
    """As the docs say: each part in a process of its own."""
    path = os.pathsep.join([str(RUN.parent), os.environ.get("PYTHONPATH", "")])
    given = [sys.executable, "-m", "headrace", "worker", "service:app", "--queue", "hunter", "--burst"]
    done = subprocess.run(
        given, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(tmp_path / "discovery.db") as database:
        assert database.execute("SELECT count(*) FROM videos").fetchone() == (100,)


def test_the_program_runs(tmp_path: Path) -> None:
    given = [sys.executable, str(RUN), "--days", "1", "--items", "96"]
    done = subprocess.run(given, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "day 1  rows 96" in done.stdout
    assert "videos in the vault 0" in done.stdout
