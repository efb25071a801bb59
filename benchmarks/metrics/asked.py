"""What a drained job asks of Valkey: commands, packets and bytes of its log, all told by the server."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.monitor import Monitor
from benchmarks.payload import SMALL
from benchmarks.systems.system import System
from benchmarks.systems.valkey import ValkeySystem

_LOOK = 0.25


class Asked(Metric):
    """A drain of its own, as watching every command slows the server down. Our own looks at it do not count."""

    name = "asked"
    needs = frozenset({"fill", "work", "watch"})
    figures = (
        Figure("statements", "per job"),
        Figure("commands_inside", "per job"),
        Figure("packets", "per job"),
        Figure("log_bytes", "B/job"),
    )
    """``statements`` are what clients send, a script with all that it does as one; ``commands_inside`` is what scripts
    call; ``packets`` are the pieces in which what is sent arrives."""
    most_repeats = 1

    def applies(self, system: System) -> bool:
        return super().applies(system) and system.backend == "valkey"

    def how(self, bench: Bench) -> str:
        return f"{bench.sizes.counted:,} no-op jobs of {SMALL} B, one worker, its start and its end included"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        assert isinstance(system, ValkeySystem)
        python, server = bench.python(system), bench.valkey("counting")
        count = min(bench.sizes.counted, system.most_drained)
        with bench.stage(system, "counting") as stage, server.connect(stage.database) as client:
            stage.play(python, system.name, "fill", count=count)
            worker = stage.start(python, system.name, "work", core=bench.cores.measured)
            worker.ready()
            before = _counts(client)
            with Monitor(stage.database, client) as seen:
                worker.go()
                looks = _wait(client, system, bench.sizes.limit)
                worker.stop()
                worker.result()
            after = _counts(client)
        packets = after["total_reads_processed"] - before["total_reads_processed"] - looks
        return {
            "statements": seen.sent / count,
            "commands_inside": seen.inside / count,
            "packets": packets / count,
            "log_bytes": (after["aof_current_size"] - before["aof_current_size"]) / count,
        }


def _wait(client: Any, system: ValkeySystem, limit: float) -> int:
    """Until the server holds no job any more; how many looks that took."""
    end, looks = time.monotonic() + limit, 1
    while system.left(client):
        if time.monotonic() > end:
            raise ValueError(f"{system.name}: jobs were left after {limit:g} s")
        time.sleep(_LOOK)
        looks += 1
    return looks


def _counts(client: Any) -> dict[str, int]:
    found = client.info("stats") | client.info("persistence")
    return {name: int(found.get(name, 0)) for name in ("total_reads_processed", "aof_current_size")}
