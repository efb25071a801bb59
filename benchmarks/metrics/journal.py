"""Bytes that a job leaves in the server's log from its insert to its deletion, by part."""

from __future__ import annotations

from typing import Any

from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.systems.system import System

_PARTS = ("insert", "work", "delete", "vacuum")
_LOADS = {
    "wal_bare": ("small", False),
    "wal_small": ("small", True),
    "wal_random": ("random", True),
    "wal_json": ("json", True),
}
"""``wal_bare`` leaves no history; ``random`` and ``json`` are the reference load, incompressible and like JSON."""


def _figures() -> tuple[Figure, ...]:
    names = [f"{load}{part}" for load in _LOADS for part in ("", "_beyond", *(f"_{part}" for part in _PARTS), "_kept")]
    return tuple(Figure(name, "B/job") for name in names)


class Journal(Metric):
    """The whole without what a clean-up adds, which is a part of its own; ``beyond`` is the whole without the payload;
    ``kept`` what tables and indexes take up more than without jobs, before anything is deleted."""

    name = "journal"
    needs = frozenset({"journal"})
    figures = _figures()
    most_repeats = 1

    def how(self, bench: Bench) -> str:
        return (
            f"{bench.sizes.journal:,} jobs; bare and small: 200 B without and with history; random and json: the"
            " reference load of 4.5 KB, 1 in 10 retried with a new vm_state; full_page_writes and autovacuum off"
        )

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, (load, history) in _LOADS.items():
            if history or system.forgets:
                found |= self._measure(bench, system, name, load, history)
        return found

    def _measure(self, bench: Bench, system: System, name: str, load: str, history: bool) -> dict[str, float]:
        count = bench.sizes.journal
        with bench.stage(system, "quiet") as stage:
            answer: dict[str, Any] = stage.play(
                bench.python(system), system.name, "journal", count=count, load=load, history=history
            )
        parts = {part: size / count for part, size in answer["parts"].items()}
        whole = sum(size for part, size in parts.items() if part != "vacuum")
        figures = {name: whole, f"{name}_beyond": whole - answer["payload"] / count}
        return (
            figures
            | {f"{name}_{part}": size for part, size in parts.items()}
            | {f"{name}_kept": answer["relations"] / count}
        )
