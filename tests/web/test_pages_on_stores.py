"""Every page is drawn on every store."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headrace import App, Client, Every, immediate
from headrace.core.config import HttpSettings
from headrace.web.server import serve_http
from tests import streams
from tests.facades.conftest import memory, store
from tests.facades.harness import Store, settings, within, working
from tests.web.test_dashboard import PAGES
from tests.web_client import ask

__all__ = ["memory", "store"]


async def drawn(app: App) -> None:
    """All pages, while a worker works, with something on each of them."""
    began, ends = asyncio.Event(), asyncio.Event()

    @app.task(queue="mail", name="send", retry=immediate(1))
    async def send(user: int) -> None:
        if user == 13:
            raise ValueError("unlucky")
        if user == 7:
            began.set()
            await ends.wait()

    async with app, serve_http(app, HttpSettings(address="127.0.0.1:0", writes=True)) as address:
        await app.policies.set("mail", tenant_running=5)
        await app.schedules.put(Every("1h", send.job(1), name="hourly"))
        dead = await send.options(tenant="acme", key="k").enqueue(13)
        runs = await send.enqueue(7)
        async with working(app):
            await within(began.wait())
            worker = app.worker
            assert worker is not None
            its_page = f"/worker?name={worker.name}"
            async with asyncio.timeout(60):  # it is listed with its first beat, and pages may be a look older
                while (await asyncio.to_thread(ask, address, its_page)).status == 404:
                    await asyncio.sleep(0.05)
            of_one = (f"/job/{dead.id}", f"/job/{runs.id}", "/queue?name=mail", its_page, "/schedule?name=hourly",
                      "/tenants?queue=mail", "/jobs?filter=args.user:13", "/bulk?filter=state:dead&action=requeue",
                      "/metrics", "/api/v1/overview")  # fmt: skip
            for path in (*PAGES, *of_one):
                answer = await asyncio.to_thread(ask, address, path)
                assert answer.status == 200, (path, answer.text)
            ends.set()


async def test_every_page_is_drawn(store: Store) -> None:
    await drawn(store.app())


async def test_every_page_is_drawn_on_streams(tmp_path: Path) -> None:
    await drawn(App(Client(streams.stores.connect(tmp_path), settings())))
