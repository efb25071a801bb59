"""One crash and what comes after it: in this process, or in one that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from headrace.protocol import Backend
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


def kill_everywhere(connect_name: str, root: Path, *, turn: bool = True) -> list[tuple[CrashPoint, Path]]:
    """Have a process killed at every point; each point comes with the directory that its process left behind.

    ``connect_name`` is ``"package.module:function"``, for the processes to import.
    """
    command = [sys.executable, "-m", "headrace.testing.crashpoints.victim", connect_name, str(root)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([*command, "turn" if turn else "no turn"], env=environment, check=True)
    return [(point, root / str(number)) for number, point in enumerate(crash_points(turn=turn))]


async def check_kill(connect: Connect, place: Path, point: CrashPoint) -> None:
    """Open what a killed process left, recover, check."""
    backend = connect(place / "store")
    await backend.open()
    try:
        await check_recovery(flow_of(point), backend, Ledger.load(place / "ledger"))
    finally:
        await backend.close()
