"""The ASGI app: health, metrics, numbers for autoscalers, the admin API and the dashboard, behind one guard."""

from __future__ import annotations

import math

from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from headrace.admin.admin import Admin
from headrace.admin.firing import Firing
from headrace.core.config import HttpSettings
from headrace.errors import ConfigError
from headrace.text import shown
from headrace.web.answers import Endpoint, answer, guarded
from headrace.web.dashboard.dashboard import dashboard_routes
from headrace.web.dashboard.live import Live
from headrace.web.guard import Guard, problem
from headrace.web.keeping import Keeping
from headrace.web.metrics import Metrics
from headrace.web.openapi import describe
from headrace.web.routes import ApiRoute, Parameter, Reading
from headrace.web.stream import Stream
from headrace.web.tokens import Role, Tokens
from headrace.web.vitals import Verdict, Vitals
from headrace.web.writing import Writing

_CONTENT = "text/plain; version=0.0.4; charset=utf-8"


class Scale(Struct, frozen=True):
    """What an autoscaler needs to know about a queue. Numbers only."""

    ready: int
    """Jobs that are due."""
    running: int
    scheduled: int
    oldest_seconds: float
    workers: int
    slots: int
    desired: int
    """Workers for all that is due or runs, with as many slots each as the workers have now, or as was asked for."""


class Probes:
    """Routes for machines: health, metrics, autoscalers."""

    def __init__(self, admin: Admin, vitals: Vitals, metrics: Metrics) -> None:
        self._admin = admin
        self._vitals = vitals
        self._metrics = metrics

    def routes(self) -> list[ApiRoute]:
        """All of them."""
        probe, slots = Role.PROBE, [Parameter("slots", "Slots of each worker; as many as they have now, if not given")]
        return [
            ApiRoute("GET", "/livez", self.live, "Whether the process should go on.", Verdict, probe),
            ApiRoute("GET", "/readyz", self.ready, "Whether it does its work now.", Verdict, probe),
            ApiRoute("GET", "/startupz", self.started, "Whether it has come up.", Verdict, probe),
            ApiRoute("GET", "/metrics", self.metrics, "Metrics for Prometheus.", str, probe, media="text/plain"),
            ApiRoute("GET", "/scale/{queue:path}", self.scale, "Numbers for autoscalers.", Scale, probe, slots),
        ]

    async def live(self, request: Request) -> Response:
        return _told(self._vitals.live())

    async def ready(self, request: Request) -> Response:
        return _told(self._vitals.ready())

    async def started(self, request: Request) -> Response:
        return _told(self._vitals.started())

    async def metrics(self, request: Request) -> Response:
        text = await self._metrics.text(with_store=request.query_params.get("store") != "no")
        return Response(text, media_type=None, headers={"Content-Type": _CONTENT})

    async def scale(self, request: Request) -> Scale:
        slots = request.query_params.get("slots")
        if slots is not None and not (slots.isdecimal() and 0 < int(slots[:9]) < 10**6):
            raise ConfigError(f"slots: expected a whole number of slots per worker, got {shown(slots)}")
        found = await self._admin.primary.queues(request.path_params["queue"])
        if not found:
            return Scale(0, 0, 0, 0.0, 0, 0, 0)
        [queue] = found
        per_worker = int(slots) if slots else max(1, queue.slots // queue.workers if queue.workers else 10)
        ready = 0 if queue.paused else queue.due
        desired = math.ceil((ready + queue.running) / per_worker)
        oldest = queue.oldest_due_seconds or 0.0
        return Scale(ready, queue.running, queue.scheduled, oldest, queue.workers, queue.slots, desired)


def web_app(
    admin: Admin,
    vitals: Vitals,
    metrics: Metrics,
    settings: HttpSettings,
    tokens: Tokens,
    live: Live,
) -> ASGIApp:
    """The whole app. It can be mounted in another one, under any prefix."""
    api = [*Reading(admin, tokens, writes=settings.writes).routes(), *Writing(admin).routes(), *Keeping(admin).routes()]

    alerts = ApiRoute(
        "GET", "/api/v1/alerts", lambda _: live.firing(), "Alerts that are on, worst first.", list[Firing]
    )
    events = ApiRoute(
        "GET", "/api/v1/events", Stream(admin.listening).events, "What happens, as it happens.", str,
        media="text/event-stream",
    )  # fmt: skip
    api += [alerts, events, *Probes(admin, vitals, metrics).routes()]
    document = describe(api)

    async def openapi(request: Request) -> Response:
        return answer(document)

    routes = [
        _route("GET", "/openapi.json", openapi, Role.VIEWER),
        *map(_api_route, api),
        *dashboard_routes(admin, live, tokens, settings),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _missing, 405: _wrong_method, 500: _broken})
    return Guard(app, tokens, writes=settings.writes, hosts=settings.hosts)


def _api_route(route: ApiRoute) -> Route:
    async def endpoint(request: Request) -> Response:
        found = await route.value(request)
        return found if isinstance(found, Response) else answer(found)

    return _route(route.method, route.path, endpoint, route.role)


def _route(method: str, path: str, endpoint: Endpoint, role: Role) -> Route:
    return Route(path, guarded(role, endpoint), methods=[method])


def _told(verdict: Verdict) -> Response:
    return answer(verdict, 200 if verdict.ok else 503)


async def _missing(request: Request, error: Exception) -> Response:
    return problem(404, "there is no such page")


async def _wrong_method(request: Request, error: Exception) -> Response:
    return problem(405, "this page does not take that method")


async def _broken(request: Request, error: Exception) -> Response:
    return problem(500, "the server failed; its log says why")
