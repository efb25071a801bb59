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

    def save(self) -> None:
        """Append to the results file."""
        RESULTS.parent.mkdir(exist_ok=True)
        with RESULTS.open("ab") as file:
            file.write(msgspec.json.encode(self) + b"\n")

    def show(self) -> str:
        """A few lines for people."""
        lines = [f"{'ok    ' if self.ok else 'FAILED'} {self.scenario} on {self.backend} (seed {self.seed})"]
        lines += [f"         {name}: {value}" for name, value in self.reached.items()]
        lines += [f"  !! {problem}" for problem in self.problems]
        return "\n".join(lines)
