"""Tenants that take turns: what that costs, how even it is, and how long light tenants wait beside a heavy one.

``python -m benchmarks.studies.fairness`` takes about twenty-five minutes on one store; ``--quick`` a few seconds, which
says little.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.fleet import Servers
from benchmarks.machine import facts
from benchmarks.results import HOME
from benchmarks.studies import turns, waits
from benchmarks.studies.stores import STORES, keep
from benchmarks.studies.tenants import Crowd

OUTPUT = HOME / "fairness.jsonl"
_TIMES = 5
_SMALL = Crowd(tenants=20, each=20, load=10)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.fairness", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--store", choices=STORES, action="append", help="may be repeated; default: postgres")
    parser.add_argument("--only", choices=("turns", "waits"), help="one half of it")
    parser.add_argument("--rate", type=float, help="jobs a second of each light tenant; a small machine needs less")
    parser.add_argument("--slots", type=int, help="of each worker; the light tenants should take about half of all")
    parser.add_argument("--place", type=Path, help="where the stores are; must be a disk, not memory")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    crowd, times, plan = (_SMALL, 1, waits.QUICK) if given.quick else (Crowd(), _TIMES, waits.Plan())
    plan = replace(plan, rate=given.rate or plan.rate, slots=given.slots or plan.slots)
    for store in given.store or STORES[:1]:
        lines: list[dict[str, object]] = []
        with Servers(given.place, None) as servers:
            if given.only != "waits":
                drained = turns.study(store, servers, crowd, times, given.place)
                lines += [{"kind": "turns", **asdict(cell), "rate": cell.rate} for cell in drained]
                print(
                    f"{store}: {crowd.jobs:,} jobs of {crowd.tenants:,} tenants\n{turns.table(drained)}\n", flush=True
                )
            if given.only != "turns":
                waited = waits.study(store, servers, plan, given.place)
                lines += [{"kind": "waits", **asdict(cell), "plan": asdict(plan)} for cell in waited]
                print(f"{store}: light tenants take {plan.share:.0%} of the slots\n{waits.table(waited)}\n", flush=True)
        keep(given.output, store, facts(given.place or Path(tempfile.gettempdir())), lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
