"""How pages are made: templates, what they all know, and errors as pages."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from headrace.admin.admin import Admin
from headrace.core.config import HttpSettings
from headrace.core.durations import relative
from headrace.errors import HeadraceError
from headrace.seam.instants import to_datetime
from headrace.text import without_secrets
from headrace.web.answers import principal, status_of
from headrace.web.dashboard import wording
from headrace.web.dashboard.live import Live
from headrace.web.tokens import Role, Tokens

HERE = Path(__file__).parent
Page = Callable[[Request], Awaitable[Response]]
NAVIGATION = (
    ("", "Overview", "o"), ("queues", "Queues", "q"), ("jobs", "Jobs", "j"), ("dead", "Dead letters", "d"),
    ("schedules", "Schedules", "s"), ("workers", "Workers", "w"), ("tenants", "Tenants", "t"),
    ("operations", "Operations", "p"), ("janitor", "Janitor", "i"), ("vault", "Vault", "v"), ("store", "Store", "b"),
    ("audit", "Audit log", "a"),
)  # fmt: skip
"""Path, words, and the key that follows ``g``."""


class Pages:
    """Renders templates for whoever asks."""

    def __init__(self, admin: Admin, live: Live, tokens: Tokens, settings: HttpSettings) -> None:
        self.admin = admin
        self.live = live
        self._tokens = tokens
        self._settings = settings

    @cached_property
    def _environment(self) -> Environment:
        made = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        for name in ("number", "short", "size", "span", "clock", "pretty", "cell"):
            made.filters[name] = getattr(wording, name)
        made.globals["version"] = _version()
        made.globals["navigation"] = NAVIGATION
        return made

    def may_write(self, request: Request) -> bool:
        """Whether whoever asks may change things here."""
        return self._settings.writes and principal(request).role.covers(Role.OPERATOR)

    async def show(self, request: Request, template: str, **values: Any) -> Response:
        """A page, or a part of one. ``code``: its status, if that is not 200."""
        who, base = principal(request), request.scope.get("root_path", "")
        now = to_datetime(0 if "code" in values else await self.admin.client.store_now())
        if "code" not in values:
            await self._tokens.agree()
        shared = {
            "base": base,
            "path": request.url.path.removeprefix(base).strip("/"),
            "who": who,
            "may_write": self.may_write(request),
            "writes": self._settings.writes,
            "csrf": self._tokens.csrf(who),
            "alerts": self.live.watch.firing,
            "now": now,
            "away": lambda instant: relative(instant, now),
            "link": lambda place, **query: link(base, place, **query),
        }
        body = self._environment.get_template(template).render({**shared, **values})
        return HTMLResponse(body, values.get("code", 200))

    def page(self, endpoint: Page) -> Page:
        """The endpoint, for viewers, with errors as pages."""

        async def shown(request: Request) -> Response:
            self.live.visit()
            who = principal(request).role
            if not who.covers(Role.VIEWER):
                return await self._refused(request, 403, f"expected a {Role.VIEWER.value}, got a {who.value}")
            try:
                return await endpoint(request)
            except HeadraceError as error:
                return await self._refused(request, status_of(error), str(error))

        return shown

    async def _refused(self, request: Request, status: int, told: str) -> Response:
        return await self.show(request, "error.html", told=without_secrets(told), code=status)


class PageSet:
    """Pages about one subject."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._admin = pages.admin
        self._live = pages.live

    def paths(self) -> Mapping[str, Page]:
        """Where each of them is."""
        raise NotImplementedError

    def routes(self) -> list[Route]:
        """For viewers."""
        return [Route(path, self._pages.page(page)) for path, page in self.paths().items()]


def link(base: str, place: str, **query: Any) -> str:
    """The address of a page. Parameters that are None or empty are left out.

    >>> link("/jobs-ui", "jobs", filter="queue:mail", after=None)
    '/jobs-ui/jobs?filter=queue%3Amail'
    """
    given = urlencode({name: value for name, value in query.items() if value not in (None, "")})
    return f"{base}/{place}" + (f"?{given}" if given else "")


def _version() -> str:
    """Changes with every file that browsers keep."""
    digest = hashlib.sha256()
    for path in sorted((HERE / "static").iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
