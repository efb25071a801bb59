"""Lines as pictures: some panels beside each other in one SVG, without a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

Points = Sequence[tuple[float, float]]
_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b")
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 300, 180, 50, 30, 75


@dataclass(frozen=True)
class Panel:
    """One diagram: lines by name, over the same x."""

    title: str
    lines: Mapping[str, Points]
    x: str = "day"


def ticks(most: float) -> list[float]:
    """Round numbers from 0 up to the first that is not less.

    >>> ticks(420)
    [0.0, 100.0, 200.0, 300.0, 400.0, 500.0]
    """
    if most <= 0:
        return [0.0, 1.0]
    size = 10.0 ** (len(f"{int(most)}") - 1) if most >= 1 else 10.0**-3
    step = next(size * factor for factor in (0.1, 0.2, 0.5, 1, 2, 5, 10, 100, 1_000) if most / (size * factor) <= 6)
    found = [0.0]
    while found[-1] < most:
        found.append(found[-1] + step)
    return found


def draw(panels: Sequence[Panel]) -> str:
    """The picture as SVG."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    colours = dict(zip(names, _COLOURS * len(names), strict=False))
    width = _LEFT + len(panels) * (_WIDTH + _GAP)
    height = _TOP + _HEIGHT + 45 + 18 * ((len(names) + 3) // 4)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11"><rect width="{width}" height="{height}" fill="white"/>'
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, _LEFT + number * (_WIDTH + _GAP), colours)
    for number, name in enumerate(names):
        x, y = _LEFT + number % 4 * 220, _TOP + _HEIGHT + 55 + number // 4 * 18
        parts.append(
            f'<line x1="{x}" y1="{y - 4}" x2="{x + 20}" y2="{y - 4}" stroke="{colours[name]}" stroke-width="2"/>'
        )
        parts.append(f'<text x="{x + 26}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, left: int, colours: Mapping[str, str]) -> list[str]:
    points = [point for line in panel.lines.values() for point in line]
    across, up = ticks(max((x for x, _ in points), default=1)), ticks(max((y for _, y in points), default=1))
    bottom = _TOP + _HEIGHT

    def place(x: float, y: float) -> str:
        return f"{left + x / across[-1] * _WIDTH:.1f},{bottom - y / up[-1] * _HEIGHT:.1f}"

    middle = left + _WIDTH / 2
    parts = [f'<text x="{middle}" y="{_TOP - 10}" text-anchor="middle" font-size="13">{escape(panel.title)}</text>']
    for y in up:
        level = bottom - y / up[-1] * _HEIGHT
        parts.append(f'<line x1="{left}" y1="{level:.1f}" x2="{left + _WIDTH}" y2="{level:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 5}" y="{level + 4:.1f}" text-anchor="end">{y:,g}</text>')
    for x in across:
        at = left + x / across[-1] * _WIDTH
        parts.append(f'<text x="{at:.1f}" y="{bottom + 15}" text-anchor="middle">{x:g}</text>')
    parts.append(f'<text x="{left + _WIDTH / 2}" y="{bottom + 30}" text-anchor="middle">{escape(panel.x)}</text>')
    for name, line in panel.lines.items():
        if line:
            told = " ".join(place(x, y) for x, y in line)
            parts.append(f'<polyline points="{told}" fill="none" stroke="{colours[name]}" stroke-width="1.8"/>')
    return parts
