"""How large sections and results are, before and after compression: counted in this process."""

from __future__ import annotations

from typing import Any

from headrace.types import SECTIONS

COUNTED = (*SECTIONS, "result")
_FIGURES = ("count", "raw", "stored", "largest")


class SectionSizes:
    """Counts what is wrapped. Two threads that count at the same moment may count one too few.

    >>> sizes = SectionSizes()
    >>> sizes.add("blob", 4_000, 900)
    >>> sizes.plain()["blob"]
    {'count': 1, 'raw': 4000, 'stored': 900, 'largest': 4000}
    """

    def __init__(self) -> None:
        self._of = {name: [0, 0, 0, 0] for name in COUNTED}

    def add(self, section: str, raw: int, stored: int) -> None:
        """Count one cell: its bytes, and what is left of them after compression."""
        of = self._of[section]
        of[0] += 1
        of[1] += raw
        of[2] += stored
        if raw > of[3]:
            of[3] = raw

    def plain(self) -> dict[str, Any]:
        """As plain data: how many, their bytes before and after compression, and the largest before it."""
        return {name: dict(zip(_FIGURES, of, strict=True)) for name, of in self._of.items()}
