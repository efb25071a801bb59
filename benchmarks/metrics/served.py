"""What a drained job asks of PostgreSQL: statements, commits, syncs and bytes of its log, all counted by the server."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.payload import SMALL
from benchmarks.postgres_server import PostgresServer
from benchmarks.stage import Stage
from benchmarks.systems.postgres import PostgresSystem
from benchmarks.systems.system import System

_LOOK = 0.25
_COUNTS = """
    SELECT
        (SELECT coalesce(sum(s.calls), 0) FROM pg_stat_statements AS s JOIN pg_database AS d ON d.oid = s.dbid
            WHERE d.datname = %(name)s AND s.toplevel) AS statements,
        (SELECT xact_commit FROM pg_stat_database WHERE datname = %(name)s) AS commits,
        (SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal') AS log_syncs,
        (SELECT wal_bytes FROM pg_stat_wal) AS log_bytes
"""
_CONNECTED = "SELECT count(*) FROM pg_stat_activity WHERE datname = %(name)s"


class Served(Metric):
    """A drain of its own, as counting slows the server down. Our own looks at it are taken off."""

    name = "served"
    needs = frozenset({"fill", "work", "watch"})
    figures = (
        Figure("statements", "per job"),
        Figure("commits", "per job"),
        Figure("log_syncs", "per job"),
        Figure("log_bytes", "B/job"),
    )
    most_repeats = 1

    def applies(self, system: System) -> bool:
        return super().applies(system) and system.backend == "postgres"

    def how(self, bench: Bench) -> str:
        return f"{bench.sizes.counted:,} no-op jobs of {SMALL} B, one worker, its start included"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        assert isinstance(system, PostgresSystem)
        python, server = bench.python(system), bench.postgres("counting")
        count = min(bench.sizes.counted, system.most_drained)
        with bench.stage(system, "counting") as stage:
            stage.play(python, system.name, "fill", count=count)
            worker = stage.start(python, system.name, "work", core=bench.cores.measured)
            worker.ready()
            before = _counts(server, stage)
            worker.go()
            looks = _wait(server, stage, system, bench.sizes.limit)
            worker.stop()
            worker.result()
            after = _counts(server, stage, gone=True)
        ours = {"statements": looks, "commits": looks}
        return {name: (after[name] - before[name] - ours.get(name, 0)) / count for name in after}


def _wait(server: PostgresServer, stage: Stage, system: PostgresSystem, limit: float) -> int:
    """Until the server holds no job any more; how many looks that took."""
    end, looks = time.monotonic() + limit, 1
    with server.connect(stage.database) as connection:
        while system.left(connection):
            if time.monotonic() > end:
                raise ValueError(f"{system.name}: jobs were left after {limit:g} s")
            time.sleep(_LOOK)
            looks += 1
    return looks


def _counts(server: PostgresServer, stage: Stage, *, gone: bool = False) -> dict[str, float]:
    """A session's counts are complete once it is gone."""
    names, parameters = ("statements", "commits", "log_syncs", "log_bytes"), {"name": stage.database}
    while gone and _number(server, parameters):
        time.sleep(0.01)
    [values] = server.ask(_COUNTS, parameters)
    return dict(zip(names, map(float, values), strict=True))


def _number(server: PostgresServer, parameters: dict[str, Any]) -> int:
    [[found]] = server.ask(_CONNECTED, parameters)
    return int(found)
