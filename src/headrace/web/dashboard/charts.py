"""Lines as SVG paths. The server draws them, so that pages need no script and no inline style for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from msgspec import Struct

Line = Sequence[float | None]


class Drawn(Struct, frozen=True):
    """One line of a chart."""

    name: str
    kind: str
    """What its colour is chosen by."""
    path: str
    area: str
    values: list[float | None]


class Chart(Struct, frozen=True):
    """Lines that share their axes."""

    lines: list[Drawn]
    width: int
    height: int
    top: float
    """The value at the upper edge."""
    step: float
    """Seconds between two points."""

    @property
    def points(self) -> int:
        """How many each line has."""
        return len(self.lines[0].values) if self.lines else 0

    @property
    def empty(self) -> bool:
        """Whether there is nothing to see yet."""
        return not any(value for line in self.lines for value in line.values)


def chart(lines: Sequence[tuple[str, str, Line]], *, step: float, width: int = 600, height: int = 140) -> Chart:
    """A chart of lines with a name and a kind each."""
    top = ceiling(max((value or 0.0 for _, _, line in lines for value in line), default=0.0))
    drawn = [
        Drawn(name, kind, path(line, top, width, height), area(line, top, width, height), list(line))
        for name, kind, line in lines
    ]
    return Chart(drawn, width, height, top, step)


def ceiling(value: float) -> float:
    """The next round number.

    >>> ceiling(0), ceiling(0.7), ceiling(23), ceiling(120)
    (1.0, 1.0, 25.0, 200.0)
    """
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next((step * unit for step in (1.0, 2.0, 2.5, 5.0, 10.0) if step * unit >= value * 0.9999), 10.0 * unit)


def path(line: Line, top: float, width: int, height: int) -> str:
    """The line; gaps stay gaps.

    >>> path([0, None, 1, 1], 1.0, 30, 10)
    'M0,10 M20,0 L30,0'
    """
    return " ".join(f"M{' L'.join(run)}" for run in _runs(line, top, width, height))


def area(line: Line, top: float, width: int, height: int) -> str:
    """What is below the line. A single point has nothing below it.

    >>> area([0, None, 1, 1], 1.0, 30, 10)
    'M20,10 L20,0 L30,0 L30,10 Z'
    """
    told: list[str] = []
    for run in _runs(line, top, width, height):
        if len(run) > 1:
            first, last = run[0].partition(",")[0], run[-1].partition(",")[0]
            told.append(f"M{first},{height} L{' L'.join(run)} L{last},{height} Z")
    return " ".join(told)


def _runs(line: Line, top: float, width: int, height: int) -> list[list[str]]:
    """The points between gaps."""
    gap = width / max(1, len(line) - 1)
    points = [
        None if value is None else f"{round(at * gap, 1):g},{round(height - height * min(value, top) / top, 1):g}"
        for at, value in enumerate(line)
    ]
    return [[point for point in run if point] for drawn, run in groupby(points, key=bool) if drawn]
