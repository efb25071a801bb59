"""The whole HTTP app inside a web app of the user's own, under any prefix."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from starlette.types import Receive, Scope, Send

from headrace.api.app import App
from headrace.api.queue import Queue
from headrace.core.config import HttpSettings
from headrace.web.metrics import EventCounts
from headrace.web.server import Site
from headrace.web.vitals import StoreVitals


class Mounted:
    """An ASGI app with the dashboard, the admin API, health and metrics of a store. Enter it for as long as the app
    around it lives: then bulk operations are carried out, and alerts are looked for.

    >>> from headrace import App
    >>> from starlette.applications import Starlette
    >>> from starlette.routing import Mount
    >>> dashboard = Mounted(App("memory://"))
    >>> web = Starlette(routes=[Mount("/jobs", dashboard)])
    """

    def __init__(self, target: App | Queue[Any, Any], settings: HttpSettings | None = None) -> None:
        client = target.client.sibling()
        http = settings or client.settings.http
        self._site = Site(client, http, target.client.alert_hooks)
        self._vitals = StoreVitals(client, writes=http.writes)
        self._app = self._site.app(self._vitals, None, EventCounts(), None)
        self._tasks: list[asyncio.Task[None]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def __aenter__(self) -> Self:
        loop, site = asyncio.get_running_loop(), self._site
        site.live.visit(for_ever=True)
        work = (self._vitals.watch(), site.run_operations())
        self._tasks = [loop.create_task(one, name="headrace-mounted") for one in work]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._site.admin.listening.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._site.close()
