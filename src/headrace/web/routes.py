"""The admin API over HTTP: each route, and what describes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import Request

from headrace.admin import views
from headrace.admin.admin import Admin
from headrace.core.validation import check_limit
from headrace.errors import ConfigError, JobNotFound
from headrace.seam.records import JobKey
from headrace.text import shown
from headrace.web.answers import principal
from headrace.web.tokens import Role, Tokens

T = TypeVar("T")
_MOST = 500
"""Jobs on a page."""


class Parameter(Struct, frozen=True):
    """A parameter of a query."""

    name: str
    words: str
    required: bool = False


class ApiRoute(Struct, frozen=True):
    """One route, for the router and for OpenAPI."""

    method: str
    path: str
    value: Callable[[Request], Awaitable[Any]]
    """What it answers with; or the whole response, if that is not JSON or not always good."""
    words: str
    answers: Any
    role: Role = Role.VIEWER
    parameters: Sequence[Parameter] = ()
    body: Any = None
    media: str = "application/json"
    """What it answers with."""


class Session(Struct, frozen=True):
    """Who asks, and what a browser sends along with changes."""

    name: str
    role: Role
    writes: bool
    csrf: str


FILTER = Parameter("filter", "Which jobs, such as: queue:mail state:dead age>1h")
_AFTER = Parameter("after", "The cursor that the page before answered with")
_LIMIT = Parameter("limit", f"Jobs on the page, at most {_MOST}")


class Reading:
    """Routes that change nothing."""

    def __init__(self, admin: Admin, tokens: Tokens, *, writes: bool) -> None:
        self._admin = admin
        self._tokens = tokens
        self._writes = writes

    def routes(self) -> list[ApiRoute]:
        """All of them."""
        admin, page = self._admin, [FILTER, _AFTER, _LIMIT]
        by_key = [Parameter("queue", "Its queue", True), Parameter("key", "Its key", True)]
        return [
            ApiRoute("GET", "/api/v1/session", self.session, "Who asks.", Session, Role.PROBE),
            ApiRoute("GET", "/api/v1/overview", lambda _: admin.overview(), "The store in numbers.", views.Overview),
            ApiRoute("GET", "/api/v1/queues", lambda _: admin.queues(), "All queues.", list[views.QueueView]),
            ApiRoute("GET", "/api/v1/queues/{queue:path}", self.queue, "One queue.", views.QueueView),
            ApiRoute(
                "GET", "/api/v1/workers", lambda _: admin.workers(), "Workers that are alive.", list[views.WorkerView]
            ),
            ApiRoute("GET", "/api/v1/jobs", self.jobs, "Jobs, newest first.", views.JobPage, parameters=page),
            ApiRoute("GET", "/api/v1/count", self.count, "How many jobs.", views.JobCount, parameters=[FILTER]),
            ApiRoute("GET", "/api/v1/job", self.job_by_key, "A job by its key.", views.JobDetails, parameters=by_key),
            ApiRoute("GET", "/api/v1/jobs/{id}", self.job, "Everything about a job.", views.JobDetails),
        ]

    async def session(self, request: Request) -> Session:
        who = principal(request)
        await self._tokens.agree()
        return Session(who.name, who.role, self._writes, self._tokens.csrf(who))

    async def queue(self, request: Request) -> views.QueueView:
        name = request.path_params["queue"]
        found = await self._admin.queues(name)
        if not found:
            raise JobNotFound(f"no queue {shown(name)} has jobs, or is paused")
        return found[0]

    async def jobs(self, request: Request) -> views.JobPage:
        query = request.query_params
        limit = min(_MOST, check_limit(whole(query.get("limit", "50"), "limit")))
        return await self._admin.jobs(query.get("filter", ""), query.get("after"), limit)

    async def count(self, request: Request) -> views.JobCount:
        return await self._admin.count(request.query_params.get("filter", ""))

    async def job(self, request: Request) -> views.JobDetails:
        return await self._admin.job(request.path_params["id"])

    async def job_by_key(self, request: Request) -> views.JobDetails:
        query = request.query_params
        if "queue" not in query or "key" not in query:
            raise ConfigError("expected queue and key in the query")
        return await self._admin.job(JobKey(query["queue"], query["key"]))


def whole(text: str, name: str) -> int:
    """A number of a query."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 15:
        raise ConfigError(f"{name}: expected a whole number, got {shown(text)}")
    return int(text)


async def read_body(request: Request, kind: type[T]) -> T:
    """What was sent, as JSON of this kind."""
    text = await request.body()
    given: Any = text or b"{}"
    try:
        return msgspec.json.decode(given, type=kind)
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"body: expected JSON as /openapi.json describes it: {error}; got {shown(text)}") from error
