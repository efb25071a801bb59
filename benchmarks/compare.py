"""``python -m benchmarks.compare COMMIT``: this tree and an older commit in one run, by turns, so that whatever slows
the machine down meets both."""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.results import Result, Run, aligned, shown
from benchmarks.venvs import ROOT

_METRICS = ("enqueue", "bulk", "drain", "pickup", "counted", "served", "journal", "appended")
_SYSTEMS = ("headrace-sqlite-full", "headrace-postgres", "headrace-valkey")
_COUNTS = re.compile("enqueue|drain|pickup_p50|pickup_p99|(wal|aof)_(bare|small|random|json)")
"""The figures that must not get worse. The others explain them."""
_HOME = ROOT / ".bench" / "commits"

_Key = tuple[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure both by turns and print the medians, their ratio and a verdict. Exit code 1: a figure that counts is
    worse."""
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
    worse = what_is_worse(runs[given.commit], runs["this tree"])
    print(f"\nworse, of enqueue, drain, pickup and log per job: {', '.join(worse) or 'nothing'}")
    return 1 if worse else 0


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
    """A line per figure that both have: the medians, their ratio, how far apart the values lie, and the verdict."""
    old, new = _values(before), _values(now)
    rows = [("system", "figure", commit, "this tree", "ratio", "verdict", "spread before", "spread now")]
    for key, result in _latest(now).items():
        if key in old and (middle := statistics.median(old[key])):
            latest = statistics.median(new[key])
            figures = (f"{shown(middle)} {result.unit}", f"{shown(latest)} {result.unit}", f"{latest / middle:.3f}")
            said = verdict(old[key], new[key], more_is_better=result.more_is_better)
            rows.append((*key, *figures, said, _spread(old[key]), _spread(new[key])))
    return aligned(rows)


def what_is_worse(before: Sequence[Run], now: Sequence[Run]) -> list[str]:
    """Of the figures that count and that both have."""
    old, new = _values(before), _values(now)
    return [
        " ".join(key)
        for key, result in _latest(now).items()
        if key in old
        and _COUNTS.fullmatch(result.metric)
        and verdict(old[key], new[key], more_is_better=result.more_is_better) == "worse"
    ]


def verdict(before: Sequence[float], now: Sequence[float], *, more_is_better: bool) -> str:
    """Whether all values now are beyond all before. Values that overlap tell of nothing but noise.

    >>> verdict([9.0, 12.0], [13.0, 15.0], more_is_better=True), verdict([9.0, 12.0], [11.0, 90.0], more_is_better=True)
    ('better', 'noise')
    """
    if max(now) < min(before):
        return "worse" if more_is_better else "better"
    if min(now) > max(before):
        return "better" if more_is_better else "worse"
    return "same" if len({*before, *now}) == 1 else "noise"


def _spread(values: Sequence[float]) -> str:
    return f"{shown(min(values))} to {shown(max(values))}"


def _values(runs: Iterable[Run]) -> dict[_Key, list[float]]:
    found: dict[_Key, list[float]] = {}
    for run in runs:
        for result in run.results:
            found.setdefault((result.system, result.metric), []).append(result.median)
    return found


def _latest(runs: Iterable[Run]) -> dict[_Key, Result]:
    return {(result.system, result.metric): result for run in runs for result in run.results}


if __name__ == "__main__":
    sys.exit(main())
