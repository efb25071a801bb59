"""Alerts, from the process that raises one to whoever is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

from headrace import App
from headrace.admin.firing import AlertChange
from headrace.core.alerts import Alert
from headrace.core.config import HttpSettings
from headrace.web.mounted import Mounted
from headrace.web.server import serve_http
from tests.facades.harness import settings, within
from tests.web_client import ask

QUICKLY = {"every": "20ms"}


class Receiver:
    """A server that takes alerts."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.came = asyncio.Event()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        receiver, loop = self, asyncio.get_running_loop()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()
                loop.call_soon_threadsafe(receiver.came.set)

            def log_message(self, *args: Any) -> None: ...

        server = HTTPServer(("127.0.0.1", 0), Handler)
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            await asyncio.to_thread(server.shutdown)
            await asyncio.to_thread(thread.join)
            server.server_close()


def shop(**alerts: Any) -> App:
    app = App(settings(alerts={**QUICKLY, **alerts}))

    @app.task(queue="mail", name="send")
    async def send(user: int) -> None: ...

    return app


async def raised(app: App) -> None:
    """A schedule is late, as soon as somebody listens. A trip makes the process ask whether anybody does."""
    feed = app.client._feed
    assert feed is not None
    while not feed.telling.is_set():
        await app.tasks["send"].enqueue(1)
        await asyncio.sleep(0.05)
    app.client.observers.alert(Alert.SCHEDULE_LATE, "nightly", "a slot was missed", queue="mail")


async def test_beside_a_worker_an_alert_goes_from_its_raiser_to_webhook_hook_and_page() -> None:
    receiver, told, heard = Receiver(), list[AlertChange](), asyncio.Event()
    async with receiver.listening() as url:
        app = shop(webhook=url)
        here = asyncio.get_running_loop()

        @app.on_alert
        def hear(change: AlertChange) -> None:
            told.append(change)
            here.call_soon_threadsafe(heard.set)

        async with app, serve_http(app, HttpSettings(address="127.0.0.1:0")) as address:
            await within(raised(app))
            await within(receiver.came.wait())
            await within(heard.wait())
            [alert] = (await asyncio.to_thread(ask, address, "/api/v1/alerts")).json
            page = (await asyncio.to_thread(ask, address, "/")).text
    assert (alert["name"], alert["subject"], alert["queue"]) == ("schedule_late", "nightly", "mail")
    assert [(one["name"], one["subject"], one["on"]) for one in receiver.got] == [("schedule_late", "nightly", True)]
    assert [(one.alert.name, one.on) for one in told] == [("schedule_late", True)]
    assert "1 alert</a>" in page
    assert "<span>nightly</span> a slot was missed" in page


async def test_beside_a_worker_without_hooks_alerts_are_looked_for_when_somebody_asks() -> None:
    app = shop()
    async with app, serve_http(app, HttpSettings(address="127.0.0.1:0")) as address:
        await app.tasks["send"].options(run_at=datetime(2020, 1, 1, tzinfo=UTC)).enqueue(1)
        found = (await asyncio.to_thread(ask, address, "/api/v1/alerts")).json
    assert [(one["name"], one["queue"]) for one in found] == [("queue_old", "mail"), ("queue_unattended", "mail")]


async def test_a_mounted_dashboard_tells_the_hooks_of_its_app() -> None:
    app, heard = shop(), asyncio.Event()

    @app.on_alert
    async def hear(change: AlertChange) -> None:
        assert change.alert.name == "schedule_late"
        heard.set()

    async with app, Mounted(app):
        await within(raised(app))
        await within(heard.wait())
