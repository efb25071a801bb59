"""Lines as SVG paths. The server draws them, so that pages need no script and no inline style for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    told: list[str] = []
    drawing = False
    for x, y in _places(line, top, width, height):
        if y is None:
            drawing = False
        else:
            told.append(f"{'L' if drawing else 'M'}{x:g},{y:g}")
            drawing = True
    return " ".join(told)


def area(line: Line, top: float, width: int, height: int) -> str:
    """What is below the line."""
    told: list[str] = []
    run: list[tuple[float, float]] = []
    for x, y in [*_places(line, top, width, height), (0.0, None)]:
        if y is not None:
            run.append((x, y))
        elif len(run) > 1:
            inner = " ".join(f"L{at:g},{high:g}" for at, high in run)
            told.append(f"M{run[0][0]:g},{height} {inner} L{run[-1][0]:g},{height} Z")
            run = []
        else:
            run = []
    return " ".join(told)


def _places(line: Line, top: float, width: int, height: int) -> list[tuple[float, float | None]]:
    gap = width / max(1, len(line) - 1)
    return [
        (round(at * gap, 1), None if value is None else round(height - height * min(value, top) / top, 1))
        for at, value in enumerate(line)
    ]
