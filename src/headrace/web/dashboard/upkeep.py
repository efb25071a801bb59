"""Pages about workers, tenants, what is kept, and the store."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headrace.admin.redaction import redact
from headrace.admin.views import JobPage, Overview
from headrace.api.info import JobInfo
from headrace.core.durations import micros
from headrace.errors import ConfigError, JobNotFound
from headrace.keeping.janitor import KeepInfo
from headrace.seam.instants import datetime_or_none
from headrace.text import shown
from headrace.types import JobState
from headrace.web.dashboard import charts
from headrace.web.dashboard.jobs import PAGE
from headrace.web.dashboard.pages import Page, PageSet
from headrace.web.dashboard.queues import chosen_range

_TENANTS = 200
_RUNS = 25


class UpkeepPages(PageSet):
    """The pages."""

    def paths(self) -> Mapping[str, Page]:
        return {
            "/dead": self.dead,
            "/workers": self.workers,
            "/worker": self.worker,
            "/tenants": self.tenants,
            "/janitor": self.janitor,
            "/store": self.store,
        }

    async def workers(self, request: Request) -> Response:
        seen, live = await self._live.overview(), self._live
        workers = sorted(seen.workers, key=lambda worker: (-worker.busy, worker.name))
        rows = [(worker, live.history.lag(worker.name, live.now())) for worker in workers]
        return await self._pages.show(request, "workers.html", rows=rows, **_slots(seen))

    async def worker(self, request: Request) -> Response:
        name, live = request.query_params.get("name", ""), self._live
        seen = await live.overview()
        worker = next((one for one in seen.workers if one.name == name), None)
        if worker is None:
            raise JobNotFound(f"no worker {shown(name)} is alive")
        jobs = await self._admin.client.jobs_of_worker(name)
        return await self._pages.show(
            request,
            "worker.html",
            worker=worker,
            jobs=jobs[:PAGE],
            all=len(jobs),
            lag=live.history.lag(name, live.now()),
        )

    async def dead(self, request: Request) -> Response:
        query, live = request.query_params, self._live
        wanted, wrong, found = query.get("filter", "").strip(), "", JobPage([])
        try:
            found = await self._admin.jobs(f"state:dead {wanted}", query.get("after") or None, PAGE)
        except ConfigError as error:
            wrong = str(error)
        seen = await live.overview()
        rules = await self._rules()
        points = chosen_range(request)
        grown = live.history.per_second("dead", live.now(), None, points)
        return await self._pages.show(
            request,
            "dead.html",
            wanted=wanted,
            wrong=wrong,
            found=found,
            errors=await self._admin.last_errors([job.id for job in found.jobs]),
            after=query.get("after"),
            kept=next((one for one in seen.kept if one.target == "failed"), None),
            number=sum(queue.failed for queue in seen.queues),
            oldest=await self._oldest(),
            rule=next((rule for rule in rules if rule.state == "failed" and not (rule.queue or rule.task)), None),
            goes=lambda job: goes_at(job, rules),
            grown=charts.chart([("dead letters", "dead", grown)], step=5.0, height=60),
            by_queue=sorted((one for one in seen.queues if one.failed), key=lambda one: -one.failed)[:8],
        )

    async def _rules(self) -> list[KeepInfo]:
        try:
            return await self._admin.upkeep.janitor.rules()
        except ConfigError:
            return []

    async def _oldest(self) -> datetime | None:
        archive = (await self._admin.reader.backend()).archive
        if archive is None:
            return None
        page = await archive.ended(JobState.FAILED, None, 1, at=self._admin.reader.clock.stamp())
        return datetime_or_none(page.records[0].finished_at) if page.records else None

    async def tenants(self, request: Request) -> Response:
        policies, wrong = self._admin.upkeep.policies, ""
        try:
            governed = sorted(one.queue for one in await policies.list() if one.queue and one.fair)
        except ConfigError as error:
            governed, wrong = [], str(error)
        wanted = request.query_params.get("queue") or (governed[0] if governed else "")
        found = await self._live.tenants(wanted) if wanted and not wrong else []
        total = sum(tenant.waiting + tenant.running for tenant in found)
        return await self._pages.show(
            request,
            "tenants.html",
            governed=governed,
            wanted=wanted,
            rows=found[:_TENANTS],
            all=len(found),
            total=total,
            wrong=wrong,
            policy=await policies.get(wanted) if wanted and not wrong else None,
        )

    async def janitor(self, request: Request) -> Response:
        janitor, wrong = self._admin.upkeep.janitor, ""
        values: dict[str, Any] = {"plan": None, "runs": [], "rules": []}
        try:
            values = {"rules": await janitor.rules(), "runs": await janitor.log(_RUNS), "plan": await janitor.preview()}
        except ConfigError as error:
            wrong = str(error)
        return await self._pages.show(request, "janitor.html", wrong=wrong, **values)

    async def store(self, request: Request) -> Response:
        seen = await self._live.overview()
        try:
            usage = await self._admin.upkeep.janitor.usage()
        except ConfigError:
            usage = None
        backend = await self._admin.client.backend()
        settings = self._admin.client.settings
        return await self._pages.show(
            request,
            "store.html",
            seen=seen,
            usage=usage,
            durable=backend.limits.durable,
            capabilities=_capabilities(backend),
            settings=redact(
                {"Lease": settings.worker.lease, "Results": settings.result_ttl, "Patience": settings.patience},
                self._admin.redaction,
            ),
        )


def goes_at(job: JobInfo, rules: list[KeepInfo]) -> datetime | None:
    """When retention lets a job go; None: never by its age."""
    if job.finished_at is None:
        return None
    fits = [
        rule for rule in rules
        if rule.state == job.state.value and rule.queue in (None, job.queue) and rule.task in (None, job.task)
    ]  # fmt: skip
    fits.sort(key=lambda rule: (rule.task is None, rule.queue is None))
    if not fits or fits[0].age == "for ever":
        return None
    return job.finished_at + timedelta(microseconds=micros(fits[0].age))


def _slots(seen: Overview) -> dict[str, int]:
    return {"slots": sum(one.slots for one in seen.workers), "busy": sum(one.busy for one in seen.workers)}


def _capabilities(backend: Any) -> list[tuple[str, bool]]:
    names = ("archive", "documents", "events", "journal", "policies", "ticks", "tracks", "usage")
    return [(name, getattr(backend, name, None) is not None) for name in names]
