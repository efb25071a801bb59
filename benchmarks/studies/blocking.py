"""Code without an event loop: jobs a second that one caller stores, one by one, beside libraries that block.

``python -m benchmarks.studies.blocking`` measures all systems of a store in turn, several times over, on one server,
and takes some minutes; ``--quick`` shows that everything works. To be reached: ``task.enqueue_sync`` is as fast as the
best of them, and at most a tenth slower than ``await task.enqueue`` on the same store. A target that some rounds reach
and others miss is told as noise.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from benchmarks import results, targets
from benchmarks.fleet import Servers
from benchmarks.harness import Harness
from benchmarks.machine import Cores, facts
from benchmarks.metrics.enqueue import Enqueue
from benchmarks.metrics.metric import Bench
from benchmarks.sizes import QUICK, Sizes
from benchmarks.systems import SYSTEMS

OUTPUT = results.HOME / "blocking.jsonl"
_FULL = replace(Sizes(), enqueue=1_000, repeats=5)
_QUICK = replace(QUICK, enqueue=100)
SINGLE = {single.store: single for single in targets.SINGLE}


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is 1 if something could not be measured, or a target was missed, unless in a quick run."""
    given = _parse(arguments)
    started, cores = time.monotonic(), Cores.pick()
    with Servers(None, cores.other) as servers:
        bench = Bench(_QUICK if given.quick else _FULL, cores, None, servers)
        run = results.Run(facts(bench.place) | {store: servers.told(store) for store in ("postgres", "valkey")})
        for store in given.store or SINGLE:
            harness = Harness(bench, run, lambda text: print(f"-- {text}", file=sys.stderr, flush=True))
            harness.measure(Enqueue(), harness.installed([SYSTEMS[name] for name in systems(store)]))
    print(results.table(run))
    print()
    verdicts = targets.verdicts(run, judged())
    print(targets.report(verdicts))
    noise = [verdict for verdict in verdicts if verdict.word == "MISSED" and _noisy(run, verdict.target)]
    for verdict in noise:
        print(f"noise: {verdict.target.system}, {verdict.target.what}: the rounds lie on both sides of the bound")
    print(f"\n{time.monotonic() - started:.0f} s")
    if given.quick:
        return 1 if run.failures else 0
    run.write(given.output)
    print(f"written to {given.output}")
    return 1 if run.failures or any(one.word == "MISSED" and one not in noise for one in verdicts) else 0


def _noisy(run: results.Run, target: targets.Target) -> bool:
    """Whether our best round reached what was missed, beside the worst round of whom it is held against."""
    ours = run.find(target.system, target.metric)
    others = [found for where in target.against if (found := run.find(*where)) is not None]
    best = max(others, key=lambda found: found.median)
    return ours is not None and max(ours.values) >= target.bound * min(best.values)


def systems(store: str) -> list[str]:
    """Ours, the same awaited, and all that block on the same store."""
    single = SINGLE[store]
    return [single.sync, single.ours, *single.sync_peers]


def judged() -> list[targets.Target]:
    """The targets that speak of nothing else."""
    return [target for single in SINGLE.values() for target in single.blocking()]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.blocking", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a hundred jobs, one round, nothing is written")
    parser.add_argument("--store", action="append", choices=list(SINGLE), help="only these; may be repeated")
    parser.add_argument("--output", default=OUTPUT, type=type(OUTPUT), help="where the results go, as JSON lines")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    sys.exit(main())
