"""A site on a memory store, served by a real server in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from headrace import App, immediate
from headrace.core.config import HttpSettings
from headrace.web.address import Address
from headrace.web.server import Server, serve_http
from tests.facades.harness import settings
from tests.web_client import Answer, ask

TOKENS = {"probe": "probe-token-0123456789", "viewer": "viewer-token-0123456789", "operator": "operator-token-0123456"}
LINES = ";".join(f"{role} {name} {TOKENS[role]}" for role, name in zip(TOKENS, ("kube", "grafana", "ada"), strict=True))


def bearer(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[role]}"}


class Site:
    """An app, and its HTTP server."""

    def __init__(self, app: App, address: Address) -> None:
        self.app = app
        self.address = address

    async def ask(self, path: str, method: str = "GET", **more: Any) -> Answer:
        return await asyncio.to_thread(ask, self.address, path, method, **more)


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    """``await site(writes=True)``: started; with ``tokens=True``, behind tokens."""
    monkeypatch.setenv("SITE_TOKENS", LINES)
    async with AsyncExitStack() as stack:

        async def start(*, tokens: bool = False, **given: Any) -> Site:
            app = App(settings())

            @app.task(queue="mail", name="send", retry=immediate(1))
            async def send(user: int, token: str = "") -> int:
                if user == 13:
                    raise ValueError("unlucky")
                return user

            await stack.enter_async_context(app)
            http = HttpSettings(address="127.0.0.1:0", tokens="env:SITE_TOKENS" if tokens else None, **given)
            return Site(app, await stack.enter_async_context(serve_http(app, http)))

        yield start


@pytest.fixture
def apps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The ASGI apps that servers are made for."""
    made: list[Any] = []
    before = Server.__init__

    def noted(self: Server, config: Any) -> None:
        made.append(config.app)
        before(self, config)

    monkeypatch.setattr(Server, "__init__", noted)
    return made
