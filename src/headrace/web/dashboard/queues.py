"""Pages about the whole, and about queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from headrace.admin.history import STEP
from headrace.admin.views import QueueView
from headrace.errors import ConfigError, JobNotFound
from headrace.text import shown
from headrace.web.dashboard import charts
from headrace.web.dashboard.pages import Page, PageSet

RANGES = {"5m": 60, "10m": 120, "30m": 360, "1h": 720}
"""Points of charts, by how far back they reach."""
_SPARK = 60
_ENDS = ("completed", "retried", "dead")
_LISTED = 200


class Speed(Struct, frozen=True):
    """A queue, or all of them, lately."""

    done: float
    failed: float
    came: float
    wait: float | None
    run: float | None


class Queues(PageSet):
    """Overview, queues and one queue."""

    def paths(self) -> Mapping[str, Page]:
        return {"/": self.overview, "/queues": self.queues, "/queue": self.queue}

    async def overview(self, request: Request) -> Response:
        seen = await self._live.overview()
        points = chosen_range(request)
        totals = {
            name: sum(getattr(queue, name) for queue in seen.queues)
            for name in ("running", "scheduled", "failed", "completed", "jobs_paused")
        }
        ages = [queue.oldest_due_seconds for queue in seen.queues if queue.oldest_due_seconds is not None]
        return await self._pages.show(
            request,
            "overview.html",
            seen=seen,
            totals=totals | {"due": sum(one.due for one in seen.queues)},
            oldest=max(ages, default=None),
            speed=self._speed(),
            busiest=sorted(seen.queues, key=lambda one: (one.running + one.due, one.failed), reverse=True)[:8],
            slots=sum(worker.slots for worker in seen.workers),
            busy=sum(worker.busy for worker in seen.workers),
            **self._charts(points),
            ranges=RANGES,
            points=points,
        )

    async def queues(self, request: Request) -> Response:
        seen = await self._live.overview()
        wanted = request.query_params.get("name", "").casefold()
        order = request.query_params.get("sort", "busy")
        found = [one for one in seen.queues if wanted in one.name.casefold()]
        found.sort(key=_order(order))
        rows = [(one, self._speed(one.name), self._spark(one.name)) for one in found[:_LISTED]]
        return await self._pages.show(request, "queues.html", rows=rows, all=len(found), wanted=wanted, order=order)

    async def queue(self, request: Request) -> Response:
        name = request.query_params.get("name", "")
        if not name:
            raise ConfigError("expected the name of a queue in the query")
        seen = await self._live.overview()
        queue = next((one for one in seen.queues if one.name == name), None)
        if queue is None:
            raise JobNotFound(f"no queue {shown(name)} has jobs, or is paused")
        points = chosen_range(request)
        return await self._pages.show(
            request,
            "queue.html",
            queue=queue,
            speed=self._speed(name),
            policy=await self._policy(name),
            workers=[worker for worker in seen.workers if name in worker.queues],
            **self._charts(points, name),
            ranges=RANGES,
            points=points,
        )

    async def _policy(self, name: str) -> Any:
        try:
            return await self._admin.upkeep.policies.get(name)
        except ConfigError:
            return None

    def _speed(self, queue: str | None = None) -> Speed:
        history, now = self._live.history, self._live.now()

        def lately(what: str) -> float:
            line = history.per_second(what, now, queue, 6)
            return sum(line) / len(line)

        return Speed(
            lately("completed"),
            lately("dead") + lately("retried"),
            lately("enqueued"),
            history.quantile("waited", 0.95, now, queue),
            history.quantile("ran", 0.95, now, queue),
        )

    def _spark(self, queue: str) -> charts.Chart:
        done = self._live.history.per_second("completed", self._live.now(), queue, _SPARK)
        return charts.chart([("done", "completed", done)], step=STEP, width=96, height=24)

    def _charts(self, points: int, queue: str | None = None) -> dict[str, charts.Chart]:
        history, now = self._live.history, self._live.now()
        ends = [(name, name, history.per_second(name, now, queue, points)) for name in _ENDS]
        ends.insert(1, ("enqueued", "available", history.per_second("enqueued", now, queue, points)))

        def quantiles(which: str) -> charts.Chart:
            shares = (("p50", "low", 0.5), ("p95", "high", 0.95), ("p99", "peak", 0.99))
            lines = [(name, kind, history.quantiles(which, share, now, queue, points)) for name, kind, share in shares]
            return charts.chart(lines, step=STEP)

        return {
            "ends": charts.chart(ends, step=STEP),
            "waits": quantiles("waited"),
            "runs": quantiles("ran"),
            "depth": charts.chart([("due", "available", history.depths(now, queue, points))], step=STEP),
        }


def chosen_range(request: Request) -> int:
    """How many points a chart has."""
    return RANGES.get(request.query_params.get("range", "10m"), RANGES["10m"])


def _order(name: str) -> Any:
    def busy(queue: QueueView) -> Any:
        return (-(queue.running + queue.due), -queue.failed, queue.name)

    orders: dict[str, Any] = {
        "name": lambda queue: queue.name,
        "oldest": lambda queue: (-(queue.oldest_due_seconds or 0.0), queue.name),
        "dead": lambda queue: (-queue.failed, queue.name),
    }
    return orders.get(name, busy)
