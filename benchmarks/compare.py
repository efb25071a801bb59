"""``python -m benchmarks.compare COMMIT``: this tree and an older commit in one run, by turns, so that whatever slows
the machine down meets both."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.results import Run, aligned, shown
from benchmarks.venvs import ROOT

_METRICS = ("enqueue", "bulk", "drain", "pickup", "counted", "served", "journal", "appended")
_SYSTEMS = ("headrace-sqlite-full", "headrace-postgres", "headrace-valkey")
_HOME = ROOT / ".bench" / "commits"

_Key = tuple[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure both by turns and print the medians and their ratio."""
    parser = argparse.ArgumentParser("python -m benchmarks.compare", description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--system", action="append")
    parser.add_argument("--metric", action="append")
    given = parser.parse_args(arguments)
    trees = {given.commit: _checked_out(given.commit), "this tree": ROOT}
    asked = [f"--{name}={value}" for name, values in _wanted(given) for value in values]
    runs: dict[str, list[Run]] = {name: [] for name in trees}
    for number in range(given.rounds):
        for name, tree in trees.items() if number % 2 == 0 else reversed(trees.items()):
            print(f"-- round {number + 1} of {given.rounds}: {name}", file=sys.stderr, flush=True)
            runs[name].append(_measured(tree, asked))
    print("\n".join(report(given.commit, runs[given.commit], runs["this tree"])))
    return 0


def _wanted(given: argparse.Namespace) -> Iterable[tuple[str, Sequence[str]]]:
    return (("system", given.system or _SYSTEMS), ("metric", given.metric or _METRICS))


def _checked_out(commit: str) -> Path:
    """The commit in a tree and an environment of its own: each is measured by the benchmarks that it came with."""
    sha = subprocess.run(["git", "rev-parse", commit], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    home = _HOME / sha.strip()
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(home)], check=True)
        subprocess.run(["git", "checkout", "--quiet", sha.strip()], cwd=home, check=True)
        subprocess.run(["make", ".venv/.installed"], cwd=home, check=True, stdout=subprocess.DEVNULL)
    return home


def _measured(tree: Path, asked: Sequence[str]) -> Run:
    with tempfile.TemporaryDirectory() as place:
        output = Path(place) / "run.jsonl"
        python = tree / ".venv" / "bin" / "python"
        command = [python, "-m", "benchmarks", "--repeats=1", f"--output={output}", *asked]
        subprocess.run(command, cwd=tree, stdout=subprocess.DEVNULL, check=True)
        return Run.read(output)


def report(commit: str, before: Sequence[Run], now: Sequence[Run]) -> list[str]:
    """A line per figure that both have: the medians, their ratio, and how far apart the values lie."""
    old, new = _values(before), _values(now)
    rows = [("system", "figure", commit, "this tree", "ratio", "spread before", "spread now")]
    for key, unit in _units(now).items():
        if key in old and (middle := statistics.median(old[key])):
            latest = statistics.median(new[key])
            figures = (f"{shown(middle)} {unit}", f"{shown(latest)} {unit}", f"{latest / middle:.3f}")
            rows.append((*key, *figures, _spread(old[key]), _spread(new[key])))
    return aligned(rows)


def _spread(values: Sequence[float]) -> str:
    return f"{shown(min(values))} to {shown(max(values))}"


def _values(runs: Iterable[Run]) -> dict[_Key, list[float]]:
    found: dict[_Key, list[float]] = {}
    for run in runs:
        for result in run.results:
            found.setdefault((result.system, result.metric), []).append(result.median)
    return found


def _units(runs: Iterable[Run]) -> dict[_Key, str]:
    return {(result.system, result.metric): result.unit for run in runs for result in run.results}


if __name__ == "__main__":
    sys.exit(main())
