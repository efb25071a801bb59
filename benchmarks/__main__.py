"""``python -m benchmarks``: measure, write the results down, and hold them against the targets."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from benchmarks import profile, results, targets
from benchmarks.fleet import Servers
from benchmarks.harness import Harness
from benchmarks.machine import Cores, facts
from benchmarks.metrics import METRICS
from benchmarks.metrics.metric import Bench
from benchmarks.sizes import QUICK, Sizes
from benchmarks.systems import SYSTEMS
from benchmarks.systems.system import System
from benchmarks.valkey_server import Aof

_STORES = sorted({system.backend for system in SYSTEMS.values()})


def main(arguments: Sequence[str] | None = None) -> int:
    """Everything that was asked for; the exit code is 1 when a measurement failed, whatever the targets say."""
    given = _parse(arguments)
    if given.targets:
        print(targets.report(targets.verdicts(results.Run.read(given.output))))
        return 0
    cores = Cores.pick() if given.pin else Cores(None, None)
    with Servers(given.place, cores.other, given.aof) as servers:
        return _measure(given, Bench(_sizes(given), cores, given.place, servers))


def _measure(given: argparse.Namespace, bench: Bench) -> int:
    if given.profile:
        names = given.system or [name for name in profile.DEFAULT if SYSTEMS[name].backend in (given.store or _STORES)]
        print(profile.write(bench, names))
        return 0
    started = time.monotonic()
    wanted = [
        system for name, system in SYSTEMS.items() if name in (given.system or SYSTEMS) and _wanted(given, system)
    ]
    told = {system.backend: bench.servers.told(system.backend) for system in wanted if system.served and bench.servers}
    harness = Harness(bench, results.Run(facts(bench.place) | told), _say)
    systems = harness.installed(wanted)
    for name, metric in METRICS.items():
        if name in (given.metric or METRICS) and not metric.skip(bench.sizes):
            harness.measure(metric, systems)
            harness.run.write(given.output)
    print(results.table(harness.run))
    print()
    print(targets.report(targets.verdicts(harness.run)))
    print(f"\n{time.monotonic() - started:.0f} s; written to {given.output}")
    return 1 if harness.run.failures else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description=f"{__doc__} Everything takes about 50 minutes on a machine of our own: PostgreSQL 20, Valkey 15.",
    )
    parser.add_argument("--quick", action="store_true", help="small counts, one round, no peers: about five minutes")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, help="measure other libraries too")
    parser.add_argument("--store", action="append", choices=_STORES, help="only systems on these; may be repeated")
    parser.add_argument("--system", action="append", choices=list(SYSTEMS), help="only these; may be repeated")
    parser.add_argument("--metric", action="append", choices=list(METRICS), help="only these; may be repeated")
    parser.add_argument("--repeats", type=_positive, help="rounds over all systems")
    parser.add_argument("--depth", type=int, help="jobs of the deep drain; 0 leaves it out")
    parser.add_argument("--place", type=Path, help="where stores are made; must be a disk, not memory")
    parser.add_argument(
        "--pin", action=argparse.BooleanOptionalAction, default=True, help="a core of its own for each side"
    )
    parser.add_argument(
        "--aof", choices=get_args(Aof), default="everysec", help="when Valkey syncs what it appends; off: no log at all"
    )
    parser.add_argument("--profile", action="store_true", help="profile Headrace's drain instead of measuring")
    parser.add_argument("--targets", action="store_true", help="judge the results written last, measure nothing")
    parser.add_argument("--output", type=Path, default=results.LATEST, help="where the results go, as JSON lines")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def _sizes(given: argparse.Namespace) -> Sizes:
    sizes = QUICK if given.quick else Sizes()
    if given.repeats is not None:
        sizes = replace(sizes, repeats=given.repeats)
    return sizes if given.depth is None else replace(sizes, deep=given.depth)


def _wanted(given: argparse.Namespace, system: System) -> bool:
    """Peers are left out of a quick run unless they are asked for."""
    peers = given.peers if given.peers is not None else not given.quick or bool(given.system)
    return (peers or not system.peer) and system.backend in (given.store or _STORES)


def _say(text: str) -> None:
    print(f"-- {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    sys.exit(main())
