"""The dashboard without a browser: who gets pages, what keeps them safe, and where their links lead."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from headrace import App, Every, JobState, progress
from headrace.admin.filters import parse_filter
from headrace.admin.operations import Operation
from headrace.admin.views import Overview, QueueView
from headrace.core.config import HttpSettings
from headrace.web.dashboard.jobs import _share, known_count
from headrace.web.dashboard.upkeep import goes_at
from headrace.web.guard import CSRF
from headrace.web.mounted import Mounted
from tests.facades.harness import settings, within, working
from tests.web.conftest import TOKENS, bearer

PAGES = (
    "/", "/queues", "/jobs", "/dead", "/schedules", "/workers", "/tenants", "/operations", "/janitor", "/vault",
    "/store", "/audit",
)  # fmt: skip
DEEDS = ("jobs", "bulk", "queue/pause", "schedule/run", "janitor/run", "store/budget", "vault/query", "reveal")


async def test_pages_are_for_viewers_and_deeds_for_operators(site: Any) -> None:
    place = await site(tokens=True, writes=True)
    for path in PAGES:
        assert (await place.ask(path, headers=bearer("probe"))).status == 403
        answer = await place.ask(path, headers=bearer("viewer"))
        assert answer.status == 200, path
        assert "hx-post" not in answer.text, "a viewer has no buttons"
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'")
        assert "unsafe" not in policy
        assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son[a-z]+=", answer.text), "nothing inline"
    for deed in DEEDS:
        for role, expected in (("probe", 403), ("viewer", 403), ("operator", 400)):
            answer = await place.ask(f"/do/{deed}", "POST", headers=bearer(role), body=b"")
            assert answer.status in ((expected,) if role != "operator" else (204, 400)), (deed, role)


async def test_a_browser_needs_the_origin_and_the_token_of_its_page(site: Any) -> None:
    place = await site(tokens=True, writes=True)
    basic = {"Authorization": "Basic " + b64encode(f"ada:{TOKENS['operator']}".encode()).decode()}
    page = (await place.ask("/queues", headers=basic)).text
    found = re.search(r'"x-headrace-csrf": "([0-9a-f]+)"', page)
    assert found is not None
    csrf = {CSRF: found[1]}
    body = b"queue=mail"
    assert (await place.ask("/do/queue/pause", "POST", headers=basic, body=body)).status == 403
    for foreign in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert (await place.ask("/do/queue/pause", "POST", headers=basic | csrf | foreign, body=body)).status == 403
    assert not await place.app.client.stats(["mail"]) or not (await place.app.client.stats(["mail"])).queues
    same = {"Origin": f"http://{place.address}", "Host": str(place.address)}
    assert (await place.ask("/do/queue/pause", "POST", headers=basic | csrf | same, body=body)).status == 204
    [queue] = (await place.app.client.stats(["mail"])).queues
    assert queue.paused


async def test_a_read_only_server_has_no_buttons(site: Any) -> None:
    place = await site()
    await place.app.tasks["send"].enqueue(1)
    answer = await place.ask("/queue?name=mail")
    assert 'hx-post="/do/queue/pause' not in answer.text
    assert "read-only" in answer.text
    assert (await place.ask("/do/queue/pause", "POST", body=b"queue=mail")).status == 403


async def test_what_a_worker_runs_and_how_far_it_has_come(site: Any) -> None:
    place = await site()
    app, going, may_end = place.app, asyncio.Event(), asyncio.Event()

    @app.task(name="count", queue="sums")
    async def count() -> None:
        progress(0.4, "<b>rows</b>")
        going.set()
        await may_end.wait()

    job = (await count.enqueue()).id
    async with working(app):
        await within(going.wait())
        name = app.worker.name
        while f"/worker?name={name}" not in (seen := await place.ask("/workers")).text:  # it has yet to beat
            assert seen.status == 200
        while "40 %, &lt;b&gt;rows" not in (seen := await place.ask(f"/worker?name={name}")).text:
            assert seen.status == 200
        page = await place.ask(f"/job/{job}")
        assert "40 %, &lt;b&gt;rows" in page.text
        assert f"it is running on {name}" in page.text
        may_end.set()


async def test_static_files(site: Any) -> None:
    place = await site()
    answer = await place.ask("/static/dashboard.css")
    assert answer.headers["content-type"].startswith("text/css")
    assert "immutable" in answer.headers["cache-control"]
    for wrong in ("/static/..%2fpages.py", "/static/nothing.css", "/static/%2e%2e%2ftemplates%2fbase.html"):
        assert (await place.ask(wrong)).status == 404


async def test_errors_are_pages(site: Any) -> None:
    place = await site()
    for path, status, told in (
        ("/job/7", 400, "expected"),
        ("/job/01900000-0000-7000-8000-000000000000", 404, "no job"),
        ("/queue?name=none", 404, "no queue"),
        ("/schedule?name=none", 404, "no schedule"),
        ("/worker?name=none", 404, "no worker"),
        ("/bulk?filter=&action=explode", 400, "expected one of"),
        ("/jobs?filter=x:1", 200, "unknown field"),
        ("/jobs?after=rubbish", 200, "expected what the page before answered"),
        ("/audit?before=x", 400, "expected a whole number"),
    ):
        answer = await place.ask(path)
        assert (answer.status, told in answer.text) == (status, True), path


async def test_the_noisiest_tenant_is_first_whatever_its_name(site: Any) -> None:
    place = await site()
    send, policies = place.app.tasks["send"], place.app.policies
    await policies.set("mail", tenant_running=1)
    quiet = [send.options(tenant=f"quiet-{number:03}").job(1) for number in range(300)]
    await place.app.enqueue_many([*quiet, *(send.options(tenant="zz-noisy").job(1) for _ in range(900))])
    page = (await place.ask("/tenants")).text
    rows = re.findall(r"<a data-open[^>]*>([^<]+)</a>", page)
    assert rows[:2] == ["zz-noisy", "quiet-000"]
    assert "75 %" in page, "of all jobs, not of those shown"
    assert "200 of 301" in page


@pytest.mark.parametrize(("met", "expected", "share"), [(5, 10, 0.5), (10_000, 10_000, None), (0, 0, 0.0)])
def test_how_far_an_operation_has_come(met: int, expected: int, share: float | None) -> None:
    given = Operation("7", "", "delete", "ada", JobState.RUNNING, expected, met)
    assert _share(given) == share


def test_processes_of_one_store_take_the_clicks_of_each_others_pages(tmp_path: Path) -> None:
    """Whoever has no tokens either: which process answers the next request is not for a browser to say."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    http = HttpSettings(writes=True, hosts=("testserver",))
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(TestClient(Starlette(routes=[Mount("/jobs", Mounted(App(settings(url=url)), http))])))
            for _ in range(2)
        )
        found = re.search(r'"x-headrace-csrf": "([0-9a-f]+)"', one.get("/jobs/queues").text)
        assert found is not None
        for client in (one, other):
            answer = client.post("/jobs/do/queue/pause", data={"queue": "mail"}, headers={CSRF: found[1]})
            assert answer.status_code == 204
            wrong = found[1][::-1]
            refused = client.post("/jobs/do/queue/pause", data={"queue": "mail"}, headers={CSRF: wrong})
            assert refused.status_code == 403


def test_under_a_prefix() -> None:
    """All links of all pages stay under it."""
    app = App(settings())

    @app.task(name="send", queue="mail")
    async def send(user: int) -> None: ...

    dashboard = Mounted(app, HttpSettings(writes=True, hosts=("testserver",)))
    with TestClient(Starlette(routes=[Mount("/admin/jobs", dashboard)])) as client:
        assert client.portal is not None
        client.portal.call(lambda: send.enqueue(1))
        client.portal.call(lambda: app.schedules.put(Every("1h", send.job(1), name="hourly")))
        seen, unread = set(), {"/admin/jobs/"}
        while unread:
            path = unread.pop()
            seen.add(path)
            answer = client.get(path)
            assert answer.status_code == 200, path
            links = set(re.findall(r'(?:href|src|action|hx-get|hx-post)="([^"#?]*)', answer.text))
            assert all(link == "" or link.startswith("/admin/jobs/") for link in links), path
            pages = re.findall(r'href="(/admin/jobs/[^"#]*)"', answer.text)
            unread |= {link.replace("&amp;", "&") for link in pages if "range=" not in link} - seen
        assert any("/job/" in path for path in seen)
        assert len(seen) > 25


@pytest.mark.parametrize(
    ("wanted", "number"),
    [
        ("", 18),
        ("queue:mail", 10),
        ("state:dead", 3),
        ("queue:sms state:running", 5),
        ("state:paused", 2),
        ("state:due", 1),
    ],
)
def test_counts_that_the_store_knows(wanted: str, number: int) -> None:
    queues = [
        QueueView("mail", available=4, scheduled=3, due=1, jobs_paused=2, completed=1, failed=3),
        QueueView("sms", running=5, cancelled=3),
    ]
    found = known_count(wanted, Overview("memory://", None, queues))
    assert found is not None
    assert (found.number, found.exact) == (number, True)


@pytest.mark.parametrize("wanted", ["task:send", "queue:m*", "-queue:mail", "state:scheduled", "queue:a queue:b", "x"])
def test_counts_that_it_does_not_know(wanted: str) -> None:
    parse_filter(wanted)
    assert known_count(wanted, Overview("memory://", None)) is None


async def test_pages_have_one_word_for_one_thing(site: Any) -> None:
    place = await site()
    for path in ("/janitor", "/store"):
        page = (await place.ask(path)).text
        assert ">dead letters<" in page, path
        assert ">failed<" not in page, path
    terms = (await place.ask("/jobs")).text
    assert '<option value="state:dead">' in terms
    assert "available" not in terms


async def test_when_dead_letters_go(site: Any) -> None:
    """The rule of the task counts before that of the queue, and both before that of the state."""
    place = await site()
    app = place.app
    await app.tasks["send"].enqueue(13)
    await app.drain()
    [job] = await app.client.list_jobs(parse_filter("state:dead").selector)
    for rule, days in (({}, 30), ({"queue": "mail"}, 20), ({"task": "send"}, 10), ({"task": "other"}, None)):
        await app.janitor.keep("forever" if days is None else f"{days}d", states="failed", **rule)
        goes = goes_at(job, await app.janitor.rules())
        assert (goes - job.finished_at).days == (days or 10)
