"""Pages about schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, tzinfo

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from headrace.admin.redaction import redact
from headrace.core.durations import spell
from headrace.errors import ConfigError, ScheduleNotFound
from headrace.schedules.calendar import zone
from headrace.schedules.coverage import Coverage, coverage
from headrace.schedules.spec import ScheduleInfo, TickInfo, status
from headrace.seam.instants import to_datetime
from headrace.text import shown
from headrace.web.dashboard.pages import Page, PageSet

_PAGE = 25
_LAST = 50
_SHOWN = 5


class Coming(Struct, frozen=True):
    """An instant at which a schedule fires."""

    at: datetime
    there: str
    """By the clocks of its zone."""
    note: str
    """What these clocks do shortly before."""


class Listed(Struct, frozen=True):
    """A schedule, and how it did lately."""

    schedule: ScheduleInfo
    status: str
    next: Coming | None
    last: TickInfo | None
    coverage: Coverage
    skipped: TickInfo | None
    """The last slot that did not fire."""


class SchedulePages(PageSet):
    """The list, and one schedule."""

    def paths(self) -> Mapping[str, Page]:
        return {"/schedules": self.schedules, "/schedule": self.schedule}

    async def schedules(self, request: Request) -> Response:
        after, wrong, found = request.query_params.get("after") or None, "", []
        schedules = self._admin.upkeep.schedules
        try:
            found = [*await schedules.list(after=after, limit=_PAGE + 1)]
            rows = [row for one in found[:_PAGE] if (row := await self._listed(one)) is not None]
        except ConfigError as error:
            wrong, rows = str(error), []
        more = found[_PAGE - 1].name if len(found) > _PAGE else None
        workers = (await self._live.overview()).workers
        return await self._pages.show(
            request, "schedules.html", rows=rows, more=more, after=after, wrong=wrong, workers=workers
        )

    async def schedule(self, request: Request) -> Response:
        name = request.query_params.get("name", "")
        if not name:
            raise ConfigError("expected the name of a schedule in the query")
        schedules = self._admin.upkeep.schedules
        schedule = await schedules.get(name)
        ticks = await schedules.history(name, _LAST)
        coming = in_zone(await schedules.next(name, _SHOWN), zone(schedule.tz or "UTC"))
        if (listed := await self._listed(schedule)) is None:
            raise ScheduleNotFound(f"schedule {shown(name)} was deleted")
        return await self._pages.show(
            request,
            "schedule.html",
            schedule=schedule,
            status=status(schedule),
            coming=coming,
            ticks=ticks,
            coverage=listed.coverage,
            args=redact(schedule.args, self._admin.redaction),
        )

    async def _listed(self, schedule: ScheduleInfo) -> Listed | None:
        """None if it was deleted meanwhile."""
        try:
            ticks = await self._admin.upkeep.schedules.history(schedule.name, _LAST)
        except ScheduleNotFound:
            return None
        now = to_datetime(await self._admin.client.store_now())
        past = [tick for tick in ticks if tick.slot <= now]
        ahead = [tick.run_at for tick in ticks if tick.slot > now and tick.state in ("available", "")]
        slot = min(ahead, default=schedule.next_slot if schedule.enabled else None)
        coming = in_zone([] if slot is None else [slot], zone(schedule.tz or "UTC"))
        return Listed(
            schedule,
            status(schedule),
            coming[0] if coming else None,
            past[0] if past else None,
            coverage(past),
            next((tick for tick in past if tick.outcome != "fired"), None),
        )


def in_zone(instants: Sequence[datetime], clocks: tzinfo) -> list[Coming]:
    """Instants by the clocks of a zone, and where these clocks are put forward or back."""
    found: list[Coming] = []
    for at in instants:
        local = at.astimezone(clocks)
        before = (at - timedelta(days=1)).astimezone(clocks)
        note = ""
        if (now := local.utcoffset()) is not None and (then := before.utcoffset()) is not None and now != then:
            length = spell(int(abs(now - then).total_seconds()) * 1_000_000)
            note = f"clocks went {'forward' if now > then else 'back'} by {length}"
        found.append(Coming(at, local.strftime("%Y-%m-%d %H:%M:%S %Z"), note))
    return found
