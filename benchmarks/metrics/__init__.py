"""The metrics, in the order in which they are measured."""

from __future__ import annotations

from benchmarks.metrics.appended import Appended
from benchmarks.metrics.asked import Asked
from benchmarks.metrics.bulk import Bulk
from benchmarks.metrics.concurrent import Concurrent
from benchmarks.metrics.counted import Counted
from benchmarks.metrics.crowd import Crowd
from benchmarks.metrics.deep import Deep
from benchmarks.metrics.depth import Depth
from benchmarks.metrics.drain import Drain
from benchmarks.metrics.enqueue import Enqueue
from benchmarks.metrics.footprint import Footprint
from benchmarks.metrics.held import Held
from benchmarks.metrics.instructions import Instructions
from benchmarks.metrics.journal import Journal
from benchmarks.metrics.metric import Metric
from benchmarks.metrics.pair import Pair
from benchmarks.metrics.pickup import Pickup
from benchmarks.metrics.reply import Reply
from benchmarks.metrics.residence import Residence
from benchmarks.metrics.served import Served
from benchmarks.metrics.shallow import Shallow
from benchmarks.metrics.solo import Solo
from benchmarks.metrics.startup import Startup

_METRICS: tuple[Metric, ...] = (
    Enqueue(),
    Concurrent(),
    Bulk(),
    Drain(),
    Shallow(),
    Solo(),
    Pickup(),
    Reply(),
    Crowd(),
    Pair(),
    Counted(),
    Served(),
    Asked(),
    Journal(),
    Appended(),
    Footprint(),
    Startup(),
    Instructions(),
    Depth(),
    Deep(),
    Held(),
    Residence(),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _METRICS}
