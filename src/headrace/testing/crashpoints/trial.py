"""One crash and what comes after it: in this process, or in one that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headrace.seam.protocol import Backend
from headrace.testing.crashpoints.check import check_recovery
from headrace.testing.crashpoints.interrupted import Crash, CrashPoint
from headrace.testing.crashpoints.ledger import Ledger
from headrace.testing.crashpoints.points import crash_points, flow_of, run_flow

Connect = Callable[[Path], Backend]
"""A new, unopened backend on the store that belongs to a directory."""


async def check_crash(connect: Connect, place: Path, point: CrashPoint) -> None:
    """Crash there, recover on a sibling, check. ``place`` is an empty directory."""
    flow, ledger = flow_of(point), Ledger()
    first = connect(place)
    await first.open()
    try:
        await run_flow(flow, first, ledger, point)
        raise AssertionError(f"the flow ended before the point was reached: {point}")
    except Crash:
        second = first.sibling()
        await second.open()
    finally:
        await first.close()
    try:
        await check_recovery(flow, second, ledger)
    finally:
        await second.close()


def kill_everywhere(
    connect_name: str, root: Path, *, finish_and_claim: bool = True, points: Sequence[CrashPoint] | None = None
) -> Iterator[tuple[CrashPoint, Path]]:
    """Have a process killed at every point, or at those given; each point comes with the directory that its process
    left behind, before the next process starts.

    ``connect_name`` is ``"package.module:function"``, for the processes to import.
    """
    command = [sys.executable, "-m", "headrace.testing.crashpoints.victim", connect_name, str(root)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    numbers = {point: number for number, point in enumerate(crash_points(finish_and_claim=finish_and_claim))}
    victim = subprocess.Popen(
        [*command, "both" if finish_and_claim else "single"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    with victim as processes:
        assert processes.stdin is not None
        assert processes.stdout is not None
        for point in numbers if points is None else points:
            processes.stdin.write(f"{numbers[point]}\n")
            if not processes.stdout.readline():
                raise RuntimeError(f"there was no death at this point, as standard error tells: {point}")
            yield point, root / str(numbers[point])


async def check_kill(
    connect: Connect, place: Path, point: CrashPoint, forget: Callable[[], object] | None = None
) -> None:
    """Open what a killed process left, recover, check. ``forget``: what keeps leases in memory loses them first."""
    if forget is not None:
        forget()
    backend = connect(place / "store")
    await backend.open()
    try:
        await check_recovery(flow_of(point), backend, Ledger.load(place / "ledger"), forgot=forget is not None)
    finally:
        await backend.close()
