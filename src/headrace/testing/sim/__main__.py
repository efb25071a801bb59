"""Play seeds from the command line: ``python -m headrace.testing.sim 7 100-120``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from headrace.testing.sim.casts import CASTS
from headrace.testing.sim.scenarios import simulate


def main(arguments: list[str] | None = None) -> int:
    """Play each seed, say how it went, and give the number of seeds that broke an invariant."""
    parser = argparse.ArgumentParser(prog="python -m headrace.testing.sim", description="Play seeds of the simulation.")
    parser.add_argument("seeds", nargs="+", help="seeds, or ranges of them like 100-120")
    parser.add_argument("--cast", choices=sorted(CASTS), default="core", help="who plays")
    given = parser.parse_args(arguments)
    broken = 0
    for seed in _seeds(given.seeds):
        history, verdict = simulate(seed, cast=CASTS[given.cast])
        said = "ok" if verdict.ok else f"broken: {', '.join(verdict.broken)}"
        sys.stdout.write(f"seed {seed}: {said}; {verdict.events} events, trace {history.trace_hash()}\n")
        if not verdict.ok:
            broken += 1
            sys.stdout.write(f"{verdict.story}\n")
    return min(broken, 1)


def _seeds(given: list[str]) -> Iterator[int]:
    for text in given:
        first, _, last = text.partition("-")
        yield from range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    sys.exit(main())
