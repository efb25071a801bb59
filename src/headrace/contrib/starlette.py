"""Headrace in Starlette: an app that opens and closes with the web app, and a worker beside it if you like."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.requests import HTTPConnection

from headrace.api.app import App
from headrace.errors import ConfigError

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]

log = logging.getLogger("headrace")


def lifespan(jobs: App, *, worker: bool = False, inner: Lifespan | None = None) -> Lifespan:
    """A lifespan that opens the app when the server starts and closes it when the server stops: ``Starlette(…,
    lifespan=lifespan(jobs))``, and the same for FastAPI. Requests then find the app as ``request.state.headrace``.

    With ``worker`` jobs run in this process, too: for small services. It stops with the server, and running jobs may
    finish within ``worker.grace``. ``inner`` is a lifespan of your own, within this one.
    """

    @asynccontextmanager
    async def opened(web: Any) -> AsyncIterator[Mapping[str, Any]]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(jobs)
            if worker:
                await stack.enter_async_context(_working(jobs))
            state = await stack.enter_async_context(inner(web)) if inner is not None else None
            yield {"headrace": jobs, **(state or {})}

    return opened


@asynccontextmanager
async def _working(jobs: App) -> AsyncIterator[None]:
    work = asyncio.ensure_future(jobs.work())
    work.add_done_callback(_tell)
    try:
        yield
    finally:
        jobs.stop()
        await asyncio.wait([work])


def _tell(work: asyncio.Future[None]) -> None:
    if not work.cancelled() and (error := work.exception()) is not None:
        log.error("the worker in this web process has ended; jobs wait for another one", exc_info=error)


def jobs_of(connection: HTTPConnection) -> App:
    """The app that ``lifespan`` has opened, in a request or on a websocket."""
    found = getattr(connection.state, "headrace", None)
    if not isinstance(found, App):
        raise ConfigError(
            "this web app has no open Headrace app: make it with lifespan=lifespan(jobs) of "
            "headrace.contrib.starlette. In tests, use TestClient as a context manager, which runs the lifespan"
        )
    return found
