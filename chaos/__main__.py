"""``python -m chaos``: the full scenarios, with a verdict each."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from chaos import (
    crash_after_claim,
    crash_objects,
    disk_full,
    freeze_workers,
    fsync_window,
    hang_store,
    impatient_callers,
    kill_archivers,
    kill_holders,
    kill_planners,
    kill_server,
    kill_workers,
    lose_windows,
    objects_away,
    observers,
    passing_errors,
    poison,
)
from chaos.outcome import Outcome
from chaos.stores import SERVERS, STORES

SCENARIOS = {
    "kill_workers": STORES,
    "poison": STORES,
    "freeze_workers": SERVERS,
    "kill_server": SERVERS,
    "crash_after_claim": (*SERVERS, "streams"),
    "hang_store": (*STORES, "streams"),
    "fsync_window": ("valkey",),
    "kill_planners": STORES,
    "kill_holders": STORES,
    "passing_errors": ("postgres",),
    "impatient_callers": ("postgres",),
    "crash_objects": (*STORES, "streams"),
    "objects_away": (*STORES, "streams"),
    "disk_full": STORES,
    "kill_archivers": STORES,
    "lose_windows": ("streams",),
    "observers": SERVERS,
}
"""On which stores each is run."""


Scenario = Callable[[Path], Coroutine[Any, Any, Outcome]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("scenario", nargs="*", default=list(SCENARIOS), help=f"of {', '.join(SCENARIOS)}; default: all")
    parser.add_argument("--store", choices=(*STORES, "streams"), action="append", help="may be repeated; default: all")
    parser.add_argument(
        "--jobs", type=int, default=50_000, help="of kill_workers and kill_holders; poison has a fifth of them"
    )
    parser.add_argument("--kills", type=int, help="of workers, default 20, of holders 50; of the server, default 10")
    parser.add_argument("--freezes", type=int, default=10)
    parser.add_argument("--hangs", type=int, default=4)
    parser.add_argument("--cuts", type=int, default=10, help="of the power")
    parser.add_argument("--crashes", type=int, default=200, help="at each step of crash_objects")
    parser.add_argument("--away", type=float, default=60.0, help="seconds, in objects_away and lose_windows")
    parser.add_argument("--processes", type=int, help="default 8; 4 where the server goes or workers are stopped")
    parser.add_argument("--lease", type=float, help="seconds; a slow machine needs long ones")
    parser.add_argument("--tenants", type=int, default=1_000)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    given = parser.parse_args()
    if unknown := set(given.scenario) - set(SCENARIOS):
        parser.error(f"no scenario {sorted(unknown)[0]!r}; there are {', '.join(SCENARIOS)}")
    good = True
    for name in given.scenario:
        for store in SCENARIOS[name]:
            if store not in (given.store or (*STORES, "streams")):
                continue
            for scenario in _scenarios(name, store, given):
                with tempfile.TemporaryDirectory() as folder:
                    outcome = asyncio.run(scenario(Path(folder)))
                outcome.save()
                print(outcome.show(), flush=True)
                good = good and outcome.ok
    return 0 if good else 1


def _scenarios(name: str, store: str, given: argparse.Namespace) -> list[Scenario]:
    """One for each way of the scenario on that store."""
    if name == "disk_full":
        return [partial(disk_full.run, seed=given.seed, backend=store, way=way) for way in disk_full.WAYS[store]]
    if name == "crash_after_claim":
        return [partial(_scenario, name, store, given, way=way) for way in crash_after_claim.WAYS]
    if name != "hang_store":
        return [partial(_scenario, name, store, given)]
    common = {"seed": given.seed, "processes": given.processes or 2} | ({"lease": given.lease} if given.lease else {})
    sizes = [{"way": way, "leases": leases} for way in hang_store.WAYS[store] for leases in (1.4, 3.0)]
    return [partial(hang_store.run, hangs=given.hangs, backend=store, **size, **common) for size in sizes]


def _scenario(
    name: str, store: str, given: argparse.Namespace, folder: Path, *, way: str = ""
) -> Coroutine[Any, Any, Outcome]:
    common = {"seed": given.seed} | ({"lease": given.lease} if given.lease else {})
    many = common | {"processes": given.processes or 8}
    few = common | {"processes": given.processes or 4}
    match name:
        case "kill_workers":
            return kill_workers.run(folder, jobs=given.jobs, kills=given.kills or 20, backend=store, **many)
        case "kill_holders":
            sizes = {"jobs": given.jobs, "tenants": given.tenants, "kills": given.kills or 50}
            return kill_holders.run(folder, backend=store, **sizes, **many)
        case "poison":
            return poison.run(folder, jobs=given.jobs // 5, killers=20, backend=store, **many)
        case "freeze_workers":
            return freeze_workers.run(folder, freezes=given.freezes, backend=store, **few)
        case "kill_server":
            return kill_server.run(folder, kills=given.kills or 10, backend=store, **few)
        case "crash_after_claim":
            return crash_after_claim.run(folder, rounds=given.kills or 12, backend=store, way=way, **few)
        case "kill_planners":
            return kill_planners.run(
                folder, schedules=given.schedules, interval=60.0, seconds=180.0, pause=10.0, backend=store, **few
            )
        case "crash_objects":
            return crash_objects.run(folder, crashes=given.crashes, seed=given.seed, backend=store)
        case "objects_away":
            return objects_away.run(folder, away=given.away, seed=given.seed, backend=store)
        case "kill_archivers":
            return kill_archivers.run(folder, deaths=given.kills or 160, seed=given.seed, backend=store)
        case "lose_windows":
            return lose_windows.run(folder, rounds=given.kills or 10, away=given.away, **few)
        case "observers":
            return observers.run(folder, seed=given.seed, backend=store)
        case "passing_errors":
            return passing_errors.run(folder, **common, processes=given.processes or 2)
        case "impatient_callers":
            return impatient_callers.run(folder, **few)
        case _:
            return fsync_window.run(folder, cuts=given.cuts, **few)


if __name__ == "__main__":
    sys.exit(main())
