"""Where the time of a drained job goes: a profile of Headrace's worker, by module and function, and of its server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.metrics.metric import Bench
from benchmarks.results import HOME
from benchmarks.stage import ActorFailed
from benchmarks.systems import SYSTEMS
from benchmarks.systems.headrace import Headrace

OUTPUT = HOME / "profile.txt"
DEFAULT = ("headrace-memory", "headrace-sqlite-full", "headrace-postgres", "headrace-valkey")
_LINES = 45

Timing = tuple[str, int, str, int, float, float]
"""File, line, function, calls, own seconds, seconds with all that it called."""


def write(bench: Bench, systems: Sequence[str], path: Path = OUTPUT) -> str:
    """Profile each system's drain; the text, which is also in the file at ``path``."""
    parts = []
    for name in systems:
        if isinstance(SYSTEMS[name], Headrace):
            try:
                parts.append(_profile(bench, name))
            except ActorFailed as error:
                parts.append(f"FAILED: {error}")
    text = "\n\n".join(parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", "utf-8")
    return text


def _profile(bench: Bench, name: str) -> str:
    system, count = SYSTEMS[name], bench.sizes.drain
    python = bench.python(system)
    with bench.stage(system, "counting") as stage:
        if system.shared:
            stage.play(python, name, "fill", count=count)
        if system.served:
            bench.server(system, "counting").clear(stage.database)
        answer = stage.play(
            python, name, "profiled", core=bench.cores.measured, count=count, filled=system.shared
        )  # fmt: skip
        text = report(name, count, [tuple(row) for row in answer["timings"]], answer["seconds"])
        if system.served:
            text += "\n\n" + bench.server(system, "counting").workload(stage.database, count)
    return text


def report(name: str, count: int, timings: Sequence[Any], seconds: float) -> str:
    """Own time per job, by module and by function; the profiler itself makes everything about twice as slow."""
    modules: defaultdict[str, float] = defaultdict(float)
    for file, _, _, _, own, _ in timings:
        modules[_short(file)] += own
    total = sum(modules.values())
    lines = [f"{name}: {count:,} jobs, {seconds / count * 1e6:.1f} µs per job under the profiler, worker's loop only"]
    lines.append(f"{'µs/job':>8}  {'share':>6}  module")
    for module, own in sorted(modules.items(), key=lambda item: -item[1])[:25]:
        lines.append(f"{own / count * 1e6:8.2f}  {own / total:6.1%}  {module}")
    lines.append(f"\n{'own':>8}  {'whole':>8}  {'calls':>7}  function   (µs/job, calls/job)")
    for file, line, function, calls, own, whole in sorted(timings, key=lambda row: -row[4])[:_LINES]:
        where = f"{_short(file)}:{line}" if line else ""
        lines.append(f"{own / count * 1e6:8.2f}  {whole / count * 1e6:8.2f}  {calls / count:7.2f}  {function}  {where}")
    return "\n".join(lines)


def _short(file: str) -> str:
    for mark in ("/headrace/", "/benchmarks/", "/asyncio/", "/site-packages/"):
        if mark in file:
            return mark.strip("/").replace("site-packages", "") + "/" + file.split(mark, 1)[1]
    return "built-in" if file in ("~", "") else Path(file).name
