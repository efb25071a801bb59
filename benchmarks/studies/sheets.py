"""How subjects of trackers should lie in a store: as rows, on sheets with an index, or on sheets by hash.

``python -m benchmarks.studies.sheets`` takes some minutes; ``--quick`` a few seconds, which says little. Each shape is
a prototype of its own: subjects are added in pages of 50, visited three times, and a tenth of them moved to another
tier. What counts is bytes per subject, and the CPU time of the server and of this process per subject.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.fleet import Servers
from benchmarks.machine import Cores, facts, on_core
from benchmarks.results import HOME, aligned, shown
from benchmarks.studies.sheet_shapes import SHAPES, Shape, opened
from benchmarks.studies.stores import STORES, Fresh, fresh

OUTPUT = HOME / "sheets.jsonl"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_PAGE = 50


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    subjects: int = 60_000
    sizes: tuple[int, ...] = (64, 256, 1_024)
    visits: int = 3
    one_by_one: int = 2_000


QUICK = Plan(subjects=1_000, sizes=(64,), visits=1, one_by_one=100)


@dataclass(frozen=True)
class Cell:
    """One shape on one store: bytes per subject, and CPU microseconds per subject."""

    store: str
    shape: str
    size: int
    loaded: float
    after: float
    load: float
    visit: float
    move: float
    add: float


def measure(found: Fresh, store: str, name: str, size: int, plan: Plan) -> Cell:
    """Fill a store, visit everything, move a tenth, then add pages to what is full."""
    rng = random.Random(1)
    ids = ["".join(rng.choices(_LETTERS, k=11)) for _ in range(plan.subjects + plan.one_by_one)]
    first, late = ids[: plan.subjects], ids[plan.subjects :]
    with opened(found, store) as connection:
        shape = SHAPES[store, name](connection, size)
        empty = shape.bytes()

        def spent(work: Callable[[], None], count: int) -> float:
            served, used = found.cpu(), time.process_time()
            work()
            return (found.cpu() - served + time.process_time() - used) / count * 1e6

        load = spent(lambda: _pages(shape, first), len(first))
        loaded = (shape.bytes() - empty) / len(first)
        visit = spent(lambda: [shape.visit() for _ in range(plan.visits)] and None, len(first) * plan.visits)
        moved = rng.sample(first, len(first) // 10)
        move = spent(lambda: shape.move(moved), len(moved))
        after = (shape.bytes() - empty) / len(first)
        add = spent(lambda: _pages(shape, late), len(late))
        assert shape.count() == len(ids), (store, name, shape.count())
    return Cell(store, name, size, loaded, after, load, visit, move, add)


def _pages(shape: Shape, ids: Sequence[str]) -> None:
    for start in range(0, len(ids), _PAGE):
        shape.add(ids[start : start + _PAGE])


def table(cells: Sequence[Cell]) -> str:
    """The cells for people."""
    rows: list[Sequence[str]] = [
        ("store", "shape", "size", "B loaded", "B after", "load us", "visit us", "move us", "add us")
    ]
    rows += [
        (c.store, c.shape, str(c.size or ""), *map(shown, (c.loaded, c.after, c.load, c.visit, c.move, c.add)))
        for c in cells
    ]
    return "\n".join(aligned(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.sheets", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--place", type=Path, help="where the stores' files are; must be a disk, not memory")
    parser.add_argument("--store", choices=STORES, action="append")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    plan = QUICK if given.quick else Plan()
    cores = Cores.pick()
    cells = []
    with Servers(given.place, cores.other) as servers, on_core(cores.measured):
        for store in given.store or STORES:
            for name in ("rows", "indexed", "hashed"):
                for size in (0,) if name == "rows" else plan.sizes:
                    with fresh(store, servers, given.place) as found:
                        cells.append(measure(found, store, name, size, plan))
                        print(table(cells[-1:]), flush=True)
    machine = facts(given.place or Path(tempfile.gettempdir()))
    lines = [{"kind": "run", "machine": machine}, *[{"kind": "cell", **asdict(cell)} for cell in cells]]
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")
    print(table(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
