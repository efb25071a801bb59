"""``python -m chaos``: the full scenarios, with a verdict each."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
from pathlib import Path

from chaos import kill_workers
from chaos.outcome import RESULTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    given = parser.parse_args()
    RESULTS.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        outcome = asyncio.run(
            kill_workers.run(
                Path(folder), jobs=given.jobs, kills=given.kills, processes=given.processes, seed=given.seed
            )
        )
    outcome.save()
    print(outcome.show())
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    sys.exit(main())
