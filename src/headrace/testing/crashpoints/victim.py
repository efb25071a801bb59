"""Processes that die by SIGKILL, one at each crash point: ``python -m headrace.testing.crashpoints.victim``.

Standard input names points by their numbers, a line each, and standard output repeats the line when a process has died
there. Each is forked from one process that has imported everything and started nothing, so that a death costs
milliseconds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from headrace.seam.protocol import Backend
from headrace.testing.crashpoints.interrupted import CrashPoint
from headrace.testing.crashpoints.ledger import Ledger
from headrace.testing.crashpoints.points import crash_points, flow_of, run_flow


def main(connect_name: str, root: Path, *, finish_and_claim: bool) -> None:
    """Die at every point that is asked for, each time in a directory of its own; it is an error to survive."""
    module, _, function = connect_name.partition(":")
    connect = getattr(import_module(module), function)
    points = crash_points(finish_and_claim=finish_and_claim)
    for line in sys.stdin:
        point, place = points[int(line)], root / line.strip()
        (place / "store").mkdir(parents=True)
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(_die(connect, place, point))
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            raise SystemExit(f"the process should have been killed, and ended with {status}: {point}")
        sys.stdout.write(line)
        sys.stdout.flush()


async def _die(connect: Callable[[Path], Backend], place: Path, point: CrashPoint) -> None:
    backend = connect(place / "store")
    await backend.open()
    ledger = Ledger(place / "ledger")
    await run_flow(flow_of(point), backend, ledger, point, lambda: os.kill(os.getpid(), signal.SIGKILL))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), finish_and_claim=sys.argv[3] == "both")
