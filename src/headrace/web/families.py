"""Families of metrics, as Prometheus reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from headrace.core.histogram import Histogram

_PREFIX = "headrace_"
Labelled = Iterable[tuple[tuple[str, ...], float]]
"""The values of a family, each with its labels."""


def expose(families: Iterable[Metric]) -> bytes:
    """The families as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given(list(families)))
    return generate_latest(registry)


class _Given(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def pairs(values: Counter[str] | dict[str, float]) -> Labelled:
    """Values by one label, in order."""
    return [((name,), number) for name, number in sorted(values.items())]


def counter(name: str, words: str, labels: list[str], values: Labelled) -> Metric:
    """What only grows."""
    family = CounterMetricFamily(_PREFIX + name, words, labels=labels)
    for given, value in values:
        family.add_metric(given, float(value))
    return family


def gauge(name: str, words: str, labels: list[str], values: Labelled) -> Metric:
    """What goes up and down."""
    family = GaugeMetricFamily(_PREFIX + name, words, labels=labels)
    for given, value in values:
        family.add_metric(given, float(value))
    return family


def histogram(name: str, words: str, labels: list[str], values: Iterable[tuple[tuple[str, ...], Histogram]]) -> Metric:
    """How values are spread."""
    family = HistogramMetricFamily(_PREFIX + name, words, labels=labels)
    for given, found in values:
        family.add_metric(given, found.cumulative(), found.total)
    return family
