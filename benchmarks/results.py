"""Results: one JSON line per figure, and a table for people."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent / "results"
LATEST = HOME / "latest.jsonl"


@dataclass(frozen=True)
class Result:
    """One figure of one system: every value that was measured, and their median."""

    backend: str
    system: str
    metric: str
    unit: str
    setting: str
    """The system's: durability above all."""
    how: str
    """The metric's: how many jobs, of which size, from where."""
    values: Sequence[float]
    more_is_better: bool
    foreign: Sequence[float] = field(default=())
    """Cores that others kept busy during each value."""
    syncs: Sequence[float] = field(default=())
    """What the disk could sync per second right after each value: the measure of all that is durable."""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """How far apart the values lie, relative to their median."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0


@dataclass(frozen=True)
class Failure:
    """A measurement that did not come about, and why."""

    system: str
    metric: str
    reason: str


@dataclass
class Run:
    """Everything that one run has found out."""

    machine: Mapping[str, Any]
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def volatile(self) -> bool:
        """Whether the stores were made on a memory file system."""
        return self.machine.get("filesystem") in ("tmpfs", "ramfs")

    def find(self, system: str, metric: str) -> Result | None:
        """The result, if it was measured."""
        return next((r for r in self.results if r.system == system and r.metric == metric), None)

    def write(self, path: Path = LATEST) -> None:
        """One JSON object per line: the machine and versions, each result, each failure."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines: list[dict[str, Any]] = [{"kind": "run", "machine": dict(self.machine), "versions": self.versions}]
        lines += [{"kind": "result", **asdict(result), "median": result.median} for result in self.results]
        lines += [{"kind": "failure", **asdict(failure)} for failure in self.failures]
        path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")

    @classmethod
    def read(cls, path: Path = LATEST) -> Run:
        """A run as it was written."""
        run = cls({})
        for line in path.read_text("utf-8").splitlines():
            given = json.loads(line)
            match given.pop("kind"):
                case "run":
                    run.machine, run.versions = given["machine"], given["versions"]
                case "result":
                    del given["median"]
                    run.results.append(Result(**given))
                case "failure":
                    run.failures.append(Failure(**given))
        return run


def table(run: Run) -> str:
    """The run for people: where, what exactly, and every figure."""
    parts = ["machine: " + ", ".join(f"{name} {value}" for name, value in run.machine.items()), ""]
    if run.volatile:
        parts.insert(1, "VOID: the stores were in memory, where durability costs nothing; use --place with a disk")
    settings = {result.system: result.setting for result in run.results}
    for system, versions in run.versions.items():
        told = ", ".join(f"{name} {value}" for name, value in versions.items())
        parts.append(f"{system}: {settings.get(system, 'not measured')} ({told})")
    for group in _groups(run.results):
        parts += ["", *(_matrix(group) if all(len(result.values) == 1 for result in group) else _sections(group))]
    parts += ["", *(f"FAILED {f.metric} of {f.system}: {f.reason}" for f in run.failures)]
    return "\n".join(parts)


def _groups(results: Iterable[Result]) -> list[list[Result]]:
    """What was measured in one way, on one kind of store."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.backend, result.how), []).append(result)
    return list(groups.values())


def _matrix(results: Sequence[Result]) -> list[str]:
    """Figures that were taken once: a line each, a column per system."""
    systems = list(dict.fromkeys(result.system for result in results))
    found = {(result.metric, result.system): result for result in results}
    rows = [("", *systems)]
    for metric, unit in dict.fromkeys((result.metric, result.unit) for result in results):
        cells = [found.get((metric, system)) for system in systems]
        rows.append((f"  {metric}, {unit}", *("" if cell is None else shown(cell.median) for cell in cells)))
    busy = {result.system: statistics.median(result.foreign) for result in results if result.foreign}
    if busy:
        rows.append(("  others busy", *(f"{busy[system]:.1f}" if system in busy else "" for system in systems)))
    return [f"{results[0].backend}: {results[0].how}", *aligned(rows)]


def _sections(results: Sequence[Result]) -> list[str]:
    """Figures that were taken several times: a line per system, with every value."""
    lines = [f"{results[0].backend}: {results[0].how}"]
    for metric in dict.fromkeys(result.metric for result in results):
        lines += _section([result for result in results if result.metric == metric])
    return lines


def _section(results: Sequence[Result]) -> list[str]:
    first = results[0]
    rows = [(f"{first.metric}, {first.unit}", "median", "spread", "others busy", "syncs/s", "values")]
    for result in results:
        several = len(result.values) > 1
        spread = f"{result.spread:.0%}" if several else ""
        others = f"{statistics.median(result.foreign):.1f}" if result.foreign else ""
        syncs = shown(statistics.median(result.syncs)) if result.syncs else ""
        values = " ".join(map(shown, result.values)) if several else ""
        rows.append((f"  {result.system}", shown(result.median), spread, others, syncs, values))
    return aligned(rows)


def shown(value: float) -> str:
    """A number at the precision that it deserves."""
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.4f}"


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell."""
    rows = list(rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
