"""With a replica: people's lists come from it, and whatever is decided by numbers asks the store itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.postgres import Postgres

from headrace import App
from headrace.admin.admin import open_admin
from headrace.core.config import HttpSettings
from headrace.errors import ConfigError
from headrace.web.server import serve_http
from tests.facades.harness import settings, within
from tests.postgres import root
from tests.web_client import ask


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    server = Postgres(root(), {"fsync": "off", "shared_buffers": "32MB"})
    server.start()
    yield server
    server.close()


async def test_a_replica_that_lags_scales_nothing_and_confirms_nothing(tmp_path: Path) -> None:
    """The copy is empty: as far behind as a replica can be."""
    urls = {"url": f"sqlite:///{tmp_path}/jobs.db", "replica_url": f"sqlite:///{tmp_path}/copy.db"}
    app = App(settings(**urls))

    @app.task(queue="mail", name="send")
    async def send() -> None: ...

    async with app, serve_http(app, HttpSettings(address="0")) as address:
        for _ in range(3):
            await send.enqueue()
        assert (await asyncio.to_thread(ask, address, "/api/v1/jobs")).json["jobs"] == [], "lists come from the copy"
        scale = await asyncio.to_thread(ask, address, "/scale/mail")
        assert scale.json["ready"] == 3
        metrics = await asyncio.to_thread(ask, address, "/metrics")
        assert 'headrace_queue_jobs{queue="mail",state="due"} 3.0' in metrics.text
    admin = open_admin(settings(**urls))
    async with admin.client:
        with pytest.raises(ConfigError, match="expected 2 jobs, got 3"):
            await admin.submit("queue:mail", "cancel", expected=2)
        assert (await admin.submit("queue:mail", "cancel", expected=3)).expected == 3
        await admin.close()


async def test_a_replica_that_is_away_is_no_alarm(tmp_path: Path) -> None:
    away = "postgresql://127.0.0.1:1/none?connect_timeout=1"
    app = App(settings(url=f"sqlite:///{tmp_path}/jobs.db", replica_url=away, patience="10s"))
    async with app, serve_http(app, HttpSettings(address="0")) as address:
        assert (await asyncio.to_thread(ask, address, "/api/v1/alerts")).json == []
        assert 'headrace_backend_up{backend="sqlite"} 1.0' in (await asyncio.to_thread(ask, address, "/metrics")).text


async def test_a_store_that_is_away_is_one_whatever_its_replica_says(postgres: Postgres, tmp_path: Path) -> None:
    urls = {"url": postgres.url(), "replica_url": f"sqlite:///{tmp_path}/copy.db"}
    app = App(settings(**urls, patience="1s", alerts={"every": "100ms"}))
    async with app, serve_http(app, HttpSettings(address="0")) as address:
        assert (await asyncio.to_thread(ask, address, "/api/v1/alerts")).json == []
        postgres.kill()

        async def alarmed() -> None:
            while (await asyncio.to_thread(ask, address, "/api/v1/alerts")).text.count("store_away") != 1:
                await asyncio.sleep(0.1)

        await within(alarmed())
        metrics = await asyncio.to_thread(ask, address, "/metrics")
        assert 'headrace_backend_up{backend="postgresql"} 0.0' in metrics.text
