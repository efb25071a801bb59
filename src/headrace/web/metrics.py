"""Metrics for Prometheus: what this process counts, and what the store says of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

from prometheus_client.core import Metric

from headrace.core.alerts import Alert
from headrace.core.events import Event, EventKind
from headrace.core.meter import Meter, Series
from headrace.core.upkeep import Upkeep
from headrace.payloads.section_sizes import COUNTED
from headrace.web.families import counter, expose, gauge, histogram, pairs
from headrace.web.pulse import Pulse
from headrace.web.store_metrics import StoreNumbers, of_store

_OUTCOMES = ("completed", "retried", "dead", "cancelled", "snoozed")


Sizes = Callable[[], dict[str, Any]]
"""How large payloads were so far, by section: ``Client.payload_sizes``."""
Copies = Callable[[], dict[str, dict[str, int]]]
"""What became of copies of new jobs: ``Client.copies``."""


class EventCounts:
    """An observer of what is not routine."""

    def __init__(self) -> None:
        self.removed: Counter[str] = Counter()
        self.alerts: Counter[str] = Counter({alert.value: 0 for alert in Alert})
        """All from the start: Prometheus does not see the first increase of a series that begins with it."""
        self.away = 0

    def __call__(self, event: Event) -> None:
        """Count an event."""
        kind = event.kind
        if kind is EventKind.SWEPT:
            self.removed[event.detail.rpartition(" ")[2]] += event.count
        elif kind is EventKind.ALERT:
            self.alerts[event.alert] += 1
        elif kind is EventKind.STORE_AWAY:
            self.away += 1


class Metrics:
    """All metrics of a process."""

    def __init__(
        self,
        backend: str,
        meter: Meter | None,
        counts: EventCounts,
        pulse: Pulse | None,
        store: StoreNumbers | None,
        sizes: Sizes | None = None,
        copies: Copies | None = None,
    ) -> None:
        self._sizes = sizes
        self._copies = copies
        self._backend = backend
        self._meter = meter
        self._counts = counts
        self._pulse = pulse
        self._store = store

    async def text(self, *, with_store: bool = True) -> bytes:
        """What a scrape gets. Without ``with_store``, what belongs to the process alone."""
        families: list[Metric] = [*self._process()]
        if with_store and self._store is not None:
            await self._store.fresh()
            store = self._store
            families += of_store(store.stats, store.now, self._backend, store.ended, store.usage, store.beside)
        return expose(families)

    def _process(self) -> Iterator[Metric]:
        yield gauge(
            "build_info", "Version and store.", ["version", "backend"], [((version("headrace"), self._backend), 1)]
        )
        if self._meter is not None:
            yield from _of_meter(self._meter, self._backend)
            yield from _of_upkeep(self._meter.upkeep)
        if self._sizes is not None:
            yield from _of_sizes(self._sizes())
        if self._copies is not None:
            became = (((shard, what), n) for shard, counts in self._copies().items() for what, n in counts.items())
            yield counter("copies", "Copies of new jobs for another store.", ["shard", "outcome"], became)
        counts = self._counts
        yield counter("janitor_removed", "Records that retention removed.", ["class"], pairs(counts.removed))
        yield counter("alerts", "Alerts.", ["alert"], pairs(counts.alerts))
        yield counter(
            "backend_errors", "Times that the store went away.", ["backend"], [((self._backend,), counts.away)]
        )
        if self._pulse is not None:
            lag = histogram(
                "event_loop_lag_seconds", "How late the worker's event loop is.", [], [((), self._pulse.lag)]
            )
            yield lag


def _of_meter(meter: Meter, backend: str) -> Iterator[Metric]:
    series = list(meter.series())
    both = ["queue", "task"]
    for name, words in (("enqueued", "Jobs stored."), ("deduplicated", "Jobs whose key was taken.")):
        yield counter(f"jobs_{name}", words, both, ((_names(one), one.others.get(name, 0)) for one in series))
    outcomes = (((*_names(one), outcome), _ended(one, outcome)) for one in series for outcome in _OUTCOMES)
    ended = [(labels, number) for labels, number in outcomes if number]
    yield counter("jobs_finished", "Attempts that ended.", [*both, "outcome"], ended)
    ran = ((_names(one), one.ran) for one in series)
    yield histogram("job_duration_seconds", "How long jobs ran.", both, ran)
    waited = ((_names(one), one.waited) for one in series)
    yield histogram("job_wait_seconds", "How long due jobs waited for their start.", both, waited)
    calls = [((backend, operation), lengths) for operation, lengths in sorted(meter.calls.items())]
    claims = [call for call in calls if call[0][1].endswith("claim")]
    names = ["backend", "operation"]
    yield histogram("claim_duration_seconds", "How long claims took.", names, claims)
    others = [call for call in calls if call not in claims]
    yield histogram("store_call_duration_seconds", "How long other calls of the store took.", names, others)
    yield histogram("claim_batch_size", "Jobs that a claim brought.", ["backend"], [((backend,), meter.claims)])


def _ended(series: Series, outcome: str) -> int:
    return series.completed if outcome == "completed" else series.others.get(outcome, 0)


def _names(series: Series) -> tuple[str, str]:
    return series.queue, series.task


def _of_sizes(sizes: dict[str, Any]) -> Iterator[Metric]:
    packed = [(section, sizes[section]) for section in COUNTED]
    words = "Sections and results that were packed."
    yield counter("payloads", words, ["section"], [((section,), of["count"]) for section, of in packed])
    words = "Their bytes, before compression (raw) and as they are stored."
    both = [((section, form), of[form]) for section, of in packed for form in ("raw", "stored")]
    yield counter("payload_bytes", words, ["section", "form"], both)


def _of_upkeep(upkeep: Upkeep) -> Iterator[Metric]:
    used = [((queue,), shares) for queue, shares in sorted(upkeep.leases.items())]
    words = "The share of a lease that had passed when it was renewed, or its job ended: one job of each trip and beat."
    yield histogram("lease_used_ratio", words, ["queue"], used)
    yield counter("lease_expired", "Leases that ran out.", ["queue"], pairs(upkeep.expired))
    yield counter(
        "job_reclaimed", "Jobs whose leases ran out, and that wait again.", ["queue"], pairs(upkeep.reclaimed)
    )
    yield counter("cron_ticks", "Slots of schedules.", ["schedule", "outcome"], sorted(upkeep.ticks.items()))
    words = "How long after their slots jobs of schedules started."
    yield histogram("cron_tick_delay_seconds", words, [], [((), upkeep.delays)])
    sweeps = [((name,), lengths) for name, lengths in sorted(upkeep.sweeps.items())]
    yield histogram("janitor_duration_seconds", "How long sweeps took that succeeded.", ["class"], sweeps)
    words = "When a sweep last succeeded in this process."
    yield gauge("janitor_last_success_timestamp_seconds", words, ["class"], pairs(upkeep.swept_at))
    requests = sorted(upkeep.requests.items())
    words = "How long requests to the object store and the vault took."
    yield histogram("blob_operation_duration_seconds", words, ["place", "op"], requests)
    yield counter("vault_written_bytes", "Bytes written to the vault.", [], [((), upkeep.archived)])
