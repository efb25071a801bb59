"""The gate in front of every route: who asks, from where, and what for."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.web.address import is_loopback
from headrace.web.tokens import LOCAL, Principal, Role, Tokens, is_bearer

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
CSRF = "x-headrace-csrf"
_LARGEST = 65_536
"""Bytes of a request's body."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses before any route sees the request. A route that is added later is guarded too."""

    def __init__(self, app: ASGIApp, tokens: Tokens, *, writes: bool, hosts: tuple[str, ...] = ()) -> None:
        self._app = app
        self._tokens = tokens
        self._writes = writes
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        principal = self._tokens.find(headers.get("authorization")) if self._tokens else LOCAL
        if scope["method"] not in SAFE:
            await self._tokens.agree()
        refusal = self._refusal(scope["method"], headers, principal)
        if refusal is None:
            scope.setdefault("state", {})["principal"] = principal
            await self._app(scope, receive, _marked(send))
        else:
            await refusal(scope, receive, _marked(send))

    def _refusal(self, method: str, headers: Headers, principal: Principal | None) -> Response | None:
        if principal is None:
            asks = {"WWW-Authenticate": 'Basic realm="headrace", charset="UTF-8"'}
            return problem(401, "expected a token: Authorization: Bearer TOKEN", asks)
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        if not self._tokens and headers.get("host") is not None and not self._known(host):
            return problem(403, "this server has no tokens, so it answers only under names of this machine")
        if method in SAFE:
            return None
        return self._write_refusal(headers, principal)

    def _known(self, host: str) -> bool:
        """Pages of others can be made to ask under their own names (DNS rebinding)."""
        return is_loopback(host) or host in self._hosts

    def _write_refusal(self, headers: Headers, principal: Principal) -> Response | None:
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
            return problem(403, "the request comes from a page of another origin")
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return problem(403, "the request comes from a page of another site")
        if not self._writes:
            return problem(403, "this server is read-only; start it with http.writes to change that")
        if not principal.role.covers(Role.OPERATOR):
            return problem(403, f"expected the token of an operator, got that of a {principal.role.value}")
        if not (is_bearer(headers.get("authorization")) or self._tokens.is_csrf(headers.get(CSRF, ""), principal)):
            return problem(403, f"expected the header {CSRF}; its value is in the answer of /api/v1/session")
        return check_size(headers)


def check_size(headers: Headers) -> Response | None:
    """Refuse a body that is too large, or does not say how large it is, before anybody reads it."""
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > _LARGEST or "transfer-encoding" in headers:
        return problem(413, f"expected a body of at most {_LARGEST:,} bytes, with its Content-Length")
    return None


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    """An error as JSON."""
    body = msgspec.json.encode({"error": detail})
    return Response(body, status, headers, media_type="application/json")


def _marked(send: Send) -> Send:
    """The same, with headers on every answer that keep browsers from misusing it."""

    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return marked
