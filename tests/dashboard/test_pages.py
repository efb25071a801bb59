"""Every page, in light and dark, on a phone and on a desk, with very many jobs in the store."""

from __future__ import annotations

import asyncio
import math
import os
import re
from pathlib import Path
from random import Random
from typing import Any

from playwright.sync_api import expect

from headrace import Admin, Cron, Every, Progress
from headrace.core.ids import IdMaker
from headrace.core.progress import pack_progress
from headrace.seam.records import Beat, Claim, Row
from headrace.web.address import parse_address
from tests.dashboard.conftest import DESKTOP, PHONE, Watched
from tests.dashboard.place import Place, make_app
from tests.facades.harness import LIMIT
from tests.web_client import ask

JOBS = 100_000
PAGES = {
    "overview": "/?range=5m", "queues": "/queues", "queue": "/queue?name=mail&range=5m", "jobs": "/jobs",
    "jobs-filtered": "/jobs?filter=queue:mail+args.user>3", "dead": "/dead", "schedules": "/schedules",
    "schedule": "/schedule?name=nightly+report", "workers": "/workers", "worker": "/worker?name=search-1",
    "tenants": "/tenants", "operations": "/operations", "janitor": "/janitor", "vault": "/vault", "store": "/store",
    "audit": "/audit",
}  # fmt: skip
PICTURES = os.environ.get("HEADRACE_PICTURES")
"""Where pictures of the pages go; ``make pictures`` sets it."""
DRAWN = {
    "overview-desk-light", "overview-phone-dark", "job-desk-dark", "dead-desk-light", "queue-desk-dark",
    "schedules-desk-light", "jobs-phone-light",
}  # fmt: skip
"""Those that the docs show."""
_BUSY = 100.0


async def fill(app: Any) -> str:
    """Very many jobs that wait, some that run, ended well or badly, schedules, tenants and workers. Returns the id of
    an operation that has ended."""
    welcome, charge = app.tasks["mail.welcome"], app.tasks["billing.charge"]
    await app.policies.set("search", tenant_running=2)
    await app.client.insert([welcome.job(user, "a secret") for user in range(-3, 40)])
    await app.client.insert([charge.job(order) for order in range(12)])
    await app.drain()
    await app.schedules.put(Cron("30 2 * * *", welcome.job(1), tz="Europe/Berlin", name="nightly report"))
    await app.schedules.put(Every("15m", welcome.job(2), name="heartbeat"))
    backend, ids, hour = await app.client.backend(), IdMaker(app.client.clock, app.client.rng), 3_600_000_000
    tenants = ("acme", "globex", "initech", "umbrella")
    for at in range(0, JOBS, 5_000):
        rows = [
            Row(
                id=ids.new(), queue=("search", "video", "archive")[number % 3], task="index",
                cells={}, tenant=tenants[number % 7 % 4], delay=(number % 5) * hour,
            )
            for number in range(at, at + 5_000)
        ]  # fmt: skip
        await backend.insert(rows, None)
    for name in ("mail-1", "search-1", "search-2"):
        [job] = (await backend.claim(Claim(name, ("video",), 1, hour))).jobs
        note = {job.id: pack_progress(Progress(0.4, "rows read"))}
        beat = Beat(name, name, ("mail", "search", "video"), hour, [(job.id, job.epoch)], hour, 10, 1, progress=note)
        await backend.renew(beat)
    await app.schedules.run("nightly report")
    await app.vault.archive()
    await app.janitor.run()
    admin = Admin(app.client)
    operation = (await admin.submit("queue:billing state:dead", "prioritise", "3", actor="ada")).id
    async with asyncio.timeout(LIMIT):
        while not (await admin.operation(operation)).state.terminal:
            await asyncio.sleep(0.05)
    return operation


async def keep_busy(app: Any) -> None:
    """Work for a while, so that pictures have lines."""
    welcome, charge = app.tasks["mail.welcome"], app.tasks["billing.charge"]
    rng, loop = Random(7), asyncio.get_running_loop()
    ends = loop.time() + _BUSY
    working = asyncio.ensure_future(app.work(["mail", "billing"]))
    while loop.time() < ends:
        wave = 30 + 25 * math.sin(loop.time() / 9)
        await app.client.insert([welcome.job(rng.randint(-1, 60)) for _ in range(rng.randint(5, 10 + int(wave)))])
        if rng.random() < 0.1:
            await app.client.insert([charge.job(rng.randint(1, 9_999))])
        await asyncio.sleep(0.25)
    app.stop()
    await working


def test_every_page_on_every_screen(watched: Watched, tmp_path: Path) -> None:
    """Each page is loaded anew for each, as scripts and styles may look only then. None is empty."""
    quickly = {} if PICTURES else {"alerts": {"every": "100ms", "unattended": "10ms", "oldest": "10ms"}}
    app = make_app(vault={"url": f"file://{tmp_path}"}, **quickly)
    with Place(app, watched.page, writes=True) as place:
        operation = place.run(fill(app))
        page = watched.page
        if not PICTURES:
            place.until(lambda: _alarmed(place))
        page.goto(f"{place.url}/dead")
        job = page.locator("[data-open]").first.get_attribute("href")
        if PICTURES:
            place.run(keep_busy(app))
        for size, screen in (("desk", DESKTOP), ("phone", PHONE)):
            page.set_viewport_size(screen)  # type: ignore[arg-type]
            for theme in ("light", "dark"):
                page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
                for name, path in {**PAGES, "job": job, "operation": f"/operation/{operation}"}.items():
                    answer = page.goto(place.url + str(path))
                    assert answer is not None
                    assert answer.status == 200, name
                    expect(page.locator("h1")).to_be_visible()
                    assert page.locator(".empty:not(.small)").count() == 0, name
                    if name == "overview" and not PICTURES:
                        expect(page.locator(".alert").first).to_be_visible()
                    assert watched.overflow() <= 0, (name, size, theme)
                    if PICTURES and f"{name}-{size}-{theme}" in DRAWN:
                        page.screenshot(path=Path(PICTURES, f"{name}-{size}-{theme}.png"))
        page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
        page.goto(f"{place.url}/schedules")
        expect(page.locator("time[data-here]").first).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "))
        page.goto(f"{place.url}/jobs?filter=queue:video")
        expect(page.locator("#count")).to_have_text("33,333")
        page.goto(f"{place.url}/jobs?filter=nonsense:1")
        expect(page.locator("#wrong")).to_contain_text("unknown field")


async def _alarmed(place: Place) -> bool:
    address = parse_address(place.url.removeprefix("http://"))
    return bool((await asyncio.to_thread(ask, address, "/api/v1/alerts")).json)
