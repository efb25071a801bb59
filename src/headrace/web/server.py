"""The HTTP server: a thread of its own beside a worker, with its own loop and connections."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from socket import socket
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from headrace.admin.admin import Admin, replica_of
from headrace.admin.hooks import Hook
from headrace.admin.operations import QUEUE, Operator, operator_client
from headrace.admin.redaction import Redaction
from headrace.admin.watch import Watch
from headrace.admin.webhook import Webhook
from headrace.api.app import App
from headrace.api.client import Client
from headrace.api.queue import Queue
from headrace.core.config import HttpSettings
from headrace.core.meter import Meter
from headrace.errors import ConfigError, HeadraceError
from headrace.web.address import Address, check_reach, parse_address
from headrace.web.app import web_app
from headrace.web.dashboard.live import Live
from headrace.web.metrics import EventCounts, Metrics, Sizes
from headrace.web.pulse import Pulse
from headrace.web.store_metrics import StoreNumbers
from headrace.web.tokens import read_tokens
from headrace.web.vitals import StoreVitals, Vitals, WorkerVitals
from headrace.worker.worker import Worker

log = logging.getLogger("headrace.http")

_STARTED = 30.0
_SHUTDOWN = 2
_MOST = 500
"""Connections at a time; more are turned away."""
_REST = 5.0
"""Seconds until operations are tried again after the store was away."""


class Site:
    """Everything that the HTTP server of one process tells, on a client of its own."""

    def __init__(self, client: Client, settings: HttpSettings, hooks: Sequence[Hook] = ()) -> None:
        self.tokens = read_tokens(settings.tokens, client)
        self.settings = settings
        self.client = client
        redaction = Redaction(settings.redaction)
        self.admin = Admin(client, replica=replica_of(client.settings), redaction=redaction)
        self.backend = client.settings.url.partition(":")[0]
        alerts = client.settings.alerts
        self.hooks: list[Hook] = [*hooks, *([] if alerts.webhook is None else [Webhook(alerts.webhook)])]
        self.live = Live(self.admin, Watch(alerts, client.settings.retention, self.hooks))

    def app(
        self,
        vitals: Vitals,
        meter: Meter | None,
        counts: EventCounts,
        pulse: Pulse | None,
        sizes: Sizes | None = None,
    ) -> ASGIApp:
        """The ASGI app."""
        numbers = StoreNumbers(self.client)
        metrics = Metrics(self.backend, meter, counts, pulse, numbers, sizes, self.client.copies)
        return web_app(self.admin, vitals, metrics, self.settings, self.tokens, self.live)

    async def run_operations(self) -> None:
        """Carry out bulk operations, until cancelled; only where they can be submitted."""
        if not self.settings.writes:
            return
        app = Operator(operator_client(self.client)).app()
        while True:
            try:
                async with app:
                    await app.work([QUEUE])
            except HeadraceError as error:
                log.warning("bulk operations rest: %s", error)
            except Exception:
                log.exception("bulk operations rest")
            await asyncio.sleep(_REST)

    async def serve(
        self, serving: Server, listening: socket, vitals: WorkerVitals | StoreVitals, *, visited: bool
    ) -> None:
        """Serve until the server is told to end, and close everything. ``visited``: watch as if somebody always looked
        at a page."""
        serving.ending = self.admin.listening.end
        try:
            if visited:
                self.live.visit(for_ever=True)
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(vitals.watch()), group.create_task(self.run_operations())]
                await serving.serve([listening])
                for task in beside:
                    task.cancel()
        finally:
            listening.close()
            await self.close()

    async def close(self) -> None:
        """Disconnect."""
        await self.live.close()
        await self.admin.close()
        await self.client.close()


class Server(uvicorn.Server):
    """A server that leaves signals to the process that it is a part of."""

    ending: Callable[[], None] = staticmethod(lambda: None)
    """Called before it waits for what is still being answered: streams would never end by themselves."""

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """End."""
        self.ending()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None are captured."""
        yield


def server(app: ASGIApp) -> Server:
    """A server for an app; it tells no access log, and nothing about itself."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_SHUTDOWN,
        ws="none",
        limit_concurrency=_MOST,
        h11_max_incomplete_event_size=65_536,
    )
    return Server(config)


def listen(settings: HttpSettings, *, protected: bool) -> tuple[Address, socket]:
    """The address of the settings, and a socket that listens there."""
    if settings.address is None:
        raise ConfigError("http.address: expected host:port, got none")
    address = parse_address(settings.address)
    check_reach(address, protected=protected)
    listening = address.listen()
    if not address.path:
        address = Address(address.host, listening.getsockname()[1])
    return address, listening


class HttpThread:
    """Serves HTTP beside a worker, even while the worker's loop is blocked."""

    def __init__(self, target: App | Queue[Any, Any], settings: HttpSettings) -> None:
        self._target = target
        self._settings = settings
        self._pulse = Pulse()
        self._counts = EventCounts()
        self._server: Server | None = None
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._main, name="headrace-http", daemon=True)
        self.address: Address | None = None
        """Where it listens, once it has started."""

    async def start(self) -> None:
        """Called on the worker's loop. Raises ``ConfigError`` if it cannot listen."""
        client = self._target.client
        self._site = Site(client.sibling(), self._settings, client.alert_hooks)
        self.address, self._socket = listen(self._settings, protected=bool(self._site.tokens))
        self._meter = client.observers.measure(client.clock)
        client.observers.add(self._counts, routine=False)
        self._pulse.start()
        self._thread.start()
        await asyncio.to_thread(self._up.wait, _STARTED)
        if not self.address.path:
            log.info("http://%s: health, metrics, the admin API and the dashboard", self.address)

    async def stop(self) -> None:
        """Answer what has been asked, and end."""
        self._pulse.stop()
        self._target.client.observers.remove(self._counts)
        if self._server is not None:
            self._server.should_exit = True
        await asyncio.to_thread(self._thread.join, _STARTED)

    def _worker(self) -> Worker | None:
        return self._target.worker

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException:
            log.exception("the HTTP server ended; the worker goes on")
        finally:
            self._up.set()

    async def _serve(self) -> None:
        vitals = WorkerVitals(self._worker, self._pulse)
        sizes = self._target.client.payload_sizes
        self._server = server(self._site.app(vitals, self._meter, self._counts, self._pulse, sizes))
        self._up.set()
        await self._site.serve(self._server, self._socket, vitals, visited=bool(self._site.hooks))


@asynccontextmanager
async def serve_http(target: App | Queue[Any, Any], settings: HttpSettings | None = None) -> AsyncIterator[Address]:
    """HTTP beside the worker of an app or queue, for as long as the block lasts. Yields where it listens."""
    thread = HttpThread(target, settings or target.client.settings.http)
    await thread.start()
    try:
        assert thread.address is not None
        yield thread.address
    finally:
        await thread.stop()


async def serve_alone(client: Client, settings: HttpSettings, *, ready: asyncio.Event | None = None) -> None:
    """HTTP in a process without a worker, until it is cancelled or told to end by a signal."""
    site = Site(client, settings, client.alert_hooks)
    address, listening = listen(settings, protected=bool(site.tokens))
    vitals = StoreVitals(client, writes=settings.writes)
    serving = server(site.app(vitals, None, EventCounts(), None))
    log.info("http://%s: health, metrics, the admin API and the dashboard", address)
    if ready is not None:
        ready.set()
    await site.serve(serving, listening, vitals, visited=True)
