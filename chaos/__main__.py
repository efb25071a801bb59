"""``python -m chaos``: the full scenarios, with a verdict each."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from chaos import kill_workers, poison
from chaos.outcome import Outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("scenario", nargs="*", default=["kill_workers", "poison"])
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    given = parser.parse_args()
    good = True
    for name in given.scenario:
        with tempfile.TemporaryDirectory() as folder:
            outcome = asyncio.run(_scenario(name, Path(folder), given))
        outcome.save()
        print(outcome.show(), flush=True)
        good = good and outcome.ok
    return 0 if good else 1


def _scenario(name: str, folder: Path, given: argparse.Namespace) -> Coroutine[Any, Any, Outcome]:
    common = {"processes": given.processes, "seed": given.seed}
    match name:
        case "kill_workers":
            return kill_workers.run(folder, jobs=given.jobs, kills=given.kills, **common)
        case "poison":
            return poison.run(folder, jobs=given.jobs // 5, killers=20, **common)
        case _:
            raise SystemExit(f"no scenario {name!r}; there are kill_workers and poison")


if __name__ == "__main__":
    sys.exit(main())
