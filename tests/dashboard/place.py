"""A dashboard that is served in a thread of its own, so that tests can drive a browser from theirs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from playwright.sync_api import Page

from headrace import App, immediate
from headrace.core.config import HttpSettings
from headrace.web.server import serve_http
from tests.facades.harness import LIMIT, settings

T = TypeVar("T")


def make_app(**given: Any) -> App:
    """An app with tasks that succeed and tasks that do not."""
    app = App(settings(**given))

    @app.task(name="mail.welcome", queue="mail", retry=immediate(1))
    async def welcome(user: int, token: str = "") -> dict[str, int]:
        await asyncio.sleep(user % 7 / 500)
        if user < 0:
            raise ValueError(f"no mailbox for user {user}")
        return {"sent": user}

    @app.task(name="billing.charge", queue="billing", retry=immediate(1))
    async def charge(order: int) -> None:
        raise TimeoutError("the bank did not answer")

    return app


class Place:
    """An app, its server, and the loop that both live on."""

    def __init__(self, app: App, page: Page, **http: Any) -> None:
        self.app = app
        self._page = page
        self._http = HttpSettings(address="127.0.0.1:0", **http)
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self.url = ""

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(self.app)
                self.url = f"http://{await stack.enter_async_context(serve_http(self.app, self._http))}"
                self._ready.set()
                await self._stop.wait()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._ready.set()

    def __enter__(self) -> Place:
        self._thread.start()
        self._ready.wait(LIMIT)
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *exc: object) -> None:
        self._page.goto("about:blank")
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(LIMIT)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it on the loop of the app."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(5 * LIMIT)

    def until(self, holds: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """Wait until it holds in the store."""

        async def waiting() -> None:
            async with asyncio.timeout(LIMIT):
                while not await holds():
                    await asyncio.sleep(0.02)

        self.run(waiting())
