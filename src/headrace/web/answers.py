"""How routes answer: values as JSON, errors as status codes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import BackendError, ConfigError, HeadraceError, JobNotFound, ScheduleNotFound, Unavailable
from headrace.text import without_secrets
from headrace.web.guard import problem
from headrace.web.tokens import Principal, Role

Endpoint = Callable[[Request], Awaitable[Response]]

_encoder = msgspec.json.Encoder()


def answer(value: Any, status: int = 200) -> Response:
    """A value as JSON."""
    body = _encoder.encode(msgspec.to_builtins(value, str_keys=True))
    return Response(body, status, media_type="application/json")


def principal(request: Request) -> Principal:
    """Who asks."""
    found: Principal = request.state.principal
    return found


def guarded(role: Role, endpoint: Endpoint) -> Endpoint:
    """The endpoint, for this role, with errors as answers."""

    async def guarded_endpoint(request: Request) -> Response:
        if not principal(request).role.covers(role):
            return problem(403, f"expected the token of a {role.value}, got that of a {principal(request).role.value}")
        try:
            return await endpoint(request)
        except HeadraceError as error:
            return problem(status_of(error), without_secrets(str(error)))

    return guarded_endpoint


def status_of(error: HeadraceError) -> int:
    """The status code that tells of an error."""
    if isinstance(error, JobNotFound | ScheduleNotFound):
        return 404
    if isinstance(error, Unavailable):
        return 503
    return 502 if isinstance(error, BackendError) and not isinstance(error, ConfigError) else 400
