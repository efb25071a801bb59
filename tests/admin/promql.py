"""As much of PromQL as our rules use: what an expression finds in samples that were scraped at regular intervals."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import promql_parser

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Scrape = dict[tuple[str, Labels], float]
"""Samples by name and labels."""

_ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": lambda a, b: a / b if b else float("nan"),
}  # fmt: skip
_COMPARISON: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt, "<": operator.lt, "==": operator.eq, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip


class Samples:
    """What was scraped so far, once every ``every`` seconds."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._scrapes: list[Scrape] = []

    def add(self, scrape: Scrape) -> None:
        self._scrapes.append(scrape)

    def find(self, expression: str) -> Vector | float:
        """The value of an expression, as of the last scrape."""
        return self._value(promql_parser.parse(expression))

    def _value(self, node: Any) -> Any:
        kind = type(node).__name__
        return getattr(self, f"_{kind.lower()}")(node)

    def _numberliteral(self, node: Any) -> float:
        return float(node.val)

    def _parenexpr(self, node: Any) -> Any:
        return self._value(node.expr)

    def _vectorselector(self, node: Any) -> Vector:
        return dict(_matching(self._scrapes[-1], node))

    def _aggregateexpr(self, node: Any) -> Vector:
        by = set() if node.modifier is None else set(node.modifier.labels)
        groups: dict[Labels, list[float]] = {}
        for labels, value in self._value(node.expr).items():
            groups.setdefault(frozenset(pair for pair in labels if pair[0] in by), []).append(value)
        fold = {"max": max, "sum": sum}[str(node.op)]
        return {labels: fold(values) for labels, values in groups.items()}

    def _call(self, node: Any) -> Any:
        name = node.func.name
        if name == "scalar":
            found = self._value(node.args[0])
            return next(iter(found.values())) if len(found) == 1 else float("nan")
        if name == "histogram_quantile":
            return dict(_quantiles(self._value(node.args[0]), self._value(node.args[1])))
        seconds = node.args[0].range.total_seconds()
        first: Vector = {}
        for scrape in self._scrapes[-max(1, int(seconds / self._every)) - 1 :]:
            last = dict(_matching(scrape, node.args[0].vector_selector))
            first = last | first
        grown = {labels: value - first[labels] for labels, value in last.items()}
        return {labels: value / seconds for labels, value in grown.items()} if name == "rate" else grown

    def _binaryexpr(self, node: Any) -> Any:
        left, right, sign = self._value(node.lhs), self._value(node.rhs), str(node.op)
        if sign == "and":
            return {labels: value for labels, value in left.items() if labels in right}
        if isinstance(left, float) and isinstance(right, float):
            return _ARITHMETIC[sign](left, right)
        pairs = _paired(left, right)
        if sign in _COMPARISON:
            return {labels: a for labels, a, b in pairs if _COMPARISON[sign](a, b)}
        return {labels: _ARITHMETIC[sign](a, b) for labels, a, b in pairs}


def _paired(left: Vector | float, right: Vector | float) -> Iterator[tuple[Labels, float, float]]:
    """Values of two vectors belong together if all their labels are the same; a number belongs to every value."""
    if isinstance(left, float):
        assert not isinstance(right, float)
        yield from ((labels, left, value) for labels, value in right.items())
    elif isinstance(right, float):
        yield from ((labels, value, right) for labels, value in left.items())
    else:
        yield from ((labels, value, right[labels]) for labels, value in left.items() if labels in right)


def _matching(scrape: Scrape, selector: Any) -> Iterator[tuple[Labels, float]]:
    for (name, labels), value in scrape.items():
        if name == selector.name and all(_fits(one, dict(labels)) for one in selector.matchers.matchers):
            yield labels, value


def _fits(matcher: Any, labels: dict[str, str]) -> bool:
    found, kind = labels.get(matcher.name, ""), str(matcher.op).partition(".")[2]
    if kind in ("Re", "NotRe"):
        return (re.fullmatch(matcher.value, found) is not None) == (kind == "Re")
    return (found == matcher.value) == (kind == "Equal")


def _quantiles(share: float, buckets: Vector) -> Iterator[tuple[Labels, float]]:
    """The upper bound of the bucket that has this share of all values below it."""
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        bound = float(dict(labels)["le"])
        groups.setdefault(frozenset(pair for pair in labels if pair[0] != "le"), []).append((bound, count))
    for labels, counted in groups.items():
        counted.sort()
        if total := counted[-1][1]:
            yield labels, next(bound for bound, count in counted if count >= share * total)
