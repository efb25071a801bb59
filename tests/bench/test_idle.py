"""The study of an idle worker counts what the server counts."""

import asyncio
from pathlib import Path

from benchmarks.fleet import Servers
from benchmarks.studies.idle import measure, table


def test_an_idle_worker_is_measured_beside_schedules(servers: Servers, tmp_path: Path) -> None:
    server = servers.postgres("counting")
    with server.databases(tmp_path) as database:
        cell = asyncio.run(measure(server, (tmp_path / "queue.url").read_text(), database, 50, 1.0))
    assert (cell.schedules, cell.seconds) == (50, 1.0)
    assert 0 <= cell.statements < 50
    assert len(table([cell]).splitlines()) == 2
