"""What a chaos run showed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

RESULTS = Path(__file__).parent / "results" / "latest.jsonl"


class Outcome(Struct, kw_only=True):
    """One scenario: what was asked of it, what it reached, and whether that is good enough."""

    scenario: str
    backend: str
    asked: dict[str, Any]
    reached: dict[str, Any]
    ok: bool
    seed: int
    problems: list[str] = []

    def save(self, path: Path = RESULTS) -> None:
        """Into the results file, in the place of what this scenario showed before; those of others stay."""
        path.parent.mkdir(exist_ok=True)
        lines = path.read_bytes().splitlines() if path.exists() else []
        known = [msgspec.json.decode(line, type=Outcome) for line in lines]
        others = [each for each in known if (each.scenario, each.backend) != (self.scenario, self.backend)]
        written = path.with_suffix(".new")
        written.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in [*others, self]))
        written.replace(path)

    def show(self) -> str:
        """A few lines for people."""
        lines = [f"{'ok    ' if self.ok else 'FAILED'} {self.scenario} on {self.backend} (seed {self.seed})"]
        lines += [f"         {name}: {value}" for name, value in self.reached.items()]
        lines += [f"  !! {problem}" for problem in self.problems]
        return "\n".join(lines)
