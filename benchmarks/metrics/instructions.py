"""Instructions per drained job: the figure that a busy machine does not change."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache

from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.sizes import Sizes
from benchmarks.systems.system import System

_PERF = ("perf", "stat", "-x,", "-e", "instructions:u")
_VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
_BASE = 1_000
_FACTOR = 20
"""Under valgrind a process takes up to so many times longer than its limit assumes."""


class Instructions(Metric):
    """Two processes store the same jobs; one runs more of them. The difference is the running, and nothing else."""

    name = "instructions"
    needs = frozenset({"solo"})
    figures = (Figure("instructions", "per job"),)
    most_repeats = 1

    def applies(self, system: System) -> bool:
        return super().applies(system) and bool(counter())

    def skip(self, sizes: Sizes) -> bool:
        return not sizes.instructions

    def how(self, bench: Bench) -> str:
        tool = (counter() or ("nothing",))[0]
        return f"counted by {tool} over {bench.sizes.instructions:,} no-op jobs, threads included"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        more = bench.sizes.instructions
        few = _count(bench, system, _BASE, aside=more)
        many = _count(bench, system, _BASE + more, aside=0)
        return {"instructions": (many - few) / more}


def _count(bench: Bench, system: System, count: int, *, aside: int) -> int:
    python = bench.python(system)
    with bench.stage(system) as stage:
        if system.shared:
            stage.play(python, system.name, "fill", count=count, aside=aside)
        actor = stage.start(
            python,
            system.name,
            "solo",
            core=bench.cores.measured,
            wrapper=counter() or (),
            limit=bench.sizes.limit * _FACTOR,
            count=count,
            aside=aside,
            filled=system.shared,
        )
        actor.ready()
        actor.go()
        actor.result()
        return _read(actor.errors())


def _read(text: str) -> int:
    found = re.search(r"I\s+refs:\s+([\d,]+)", text) or re.search(r"^(\d+),[^\n]*instructions", text, re.MULTILINE)
    if found is None:
        raise ValueError("the counter said nothing")
    return int(found.group(1).replace(",", ""))


@cache
def counter() -> Sequence[str] | None:
    """The command that counts instructions here, if any does."""
    for command in (_PERF, _VALGRIND):
        if shutil.which(command[0]) is None:
            continue
        try:
            tried = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=30)
            _read(tried.stderr)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            continue
        return command
    return None
