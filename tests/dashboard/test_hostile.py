"""Names, payloads and errors of strangers are text on every page, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlencode

from msgspec.structs import replace
from playwright.sync_api import expect

from headrace import Admin, Every, NewJob, Progress, immediate
from headrace.core.progress import pack_progress
from headrace.seam.records import Beat, Cancel, Claim, Selector
from headrace.web.address import parse_address
from tests.dashboard.conftest import Watched
from tests.dashboard.place import Place, make_app
from tests.web_client import ask

STRINGS = 500
HOUR = 3_600_000_000
_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
_HOSTILE = (
    "<img src=x onerror=alert(1)>", "<script>alert(1)</script>", "'\"><svg/onload=alert(1)>", "{{ 7*7 }}", "{% raw %}",
    "</textarea><b>", "javascript:alert(1)", "\" autofocus onfocus=alert(1) x=\"", "<!--", "]]>", "</script><h1>",
    "<a href=x>", "&lt;b&gt;", "\u202e<i>", "<iframe src=//x>", "`${alert(1)}`", "<style>*{display:none}</style>",
    "' hx-get='/do' hx-trigger='load", "<form action=//x><input name=id>", "%3Cb%3E", "<math><mi//xlink:href=x>",
)  # fmt: skip
_MARKED = "[data-hostile], main script, main img, main iframe, main h1 h1, main b > b, main style, main object"


def hostile(rng: Random) -> str:
    """A string that is more than text where it is not escaped."""
    return "".join(rng.choice(_HOSTILE) for _ in range(rng.randint(1, 3))) + f"<u data-hostile=1>{rng.random()}"


def test_hostile_strings_add_no_element(watched: Watched) -> None:
    """No page has an element that such a string would make if it were not escaped."""
    rng, app = Random(7), make_app()
    strings = [hostile(rng) for _ in range(STRINGS)]
    with Place(app, watched.page, writes=True) as place:

        async def fill() -> list[Any]:
            jobs = [
                NewJob(
                    task=text, queue=strings[number - 1].replace("\n", " "), tenant=strings[number - 2],
                    key=strings[number - 3], group=strings[number - 4], args={text: [text], "n": {"x": text}},
                    headers={"x": text, "source": text},
                )
                for number, text in enumerate(strings)
            ]  # fmt: skip
            stored = await app.client.insert(jobs)
            failing: Any = app.task(name=strings[0], queue=strings[1])(_fail)
            await failing.enqueue(strings[2])
            await app.drain([strings[1]])
            await app.schedules.put(Every("1h", replace(jobs[3], key=None), name=strings[3]))
            await app.policies.set(strings[4], tenant_running=1)
            await app.client.insert([NewJob(task="t", queue=strings[4], tenant=text) for text in strings[:20]])
            return [one.id for one in stored]

        ids = place.run(fill())
        page = watched.page
        paths = ["/", "/queues", "/jobs", "/dead", "/schedules", "/tenants", "/workers", "/audit", "/operations"]
        paths += [f"/job/{id.hex()}" for id in (ids[0], ids[-1])]
        for path in paths:
            answer = page.goto(place.url + path)
            assert answer is not None
            assert answer.status == 200, path
            assert page.locator(_MARKED).count() == 0, path
            assert watched.overflow() <= 0, path
        for text in strings[:3]:
            for path, name in (("/jobs", "filter"), ("/queues", "name"), ("/queue", "name"), ("/schedule", "name")):
                page.goto(f"{place.url}{path}?{urlencode({name: text})}")
                assert page.locator(_MARKED).count() == 0, (path, text)
        assert all("status of 40" in one for one in watched.complaints), watched.complaints
        watched.complaints.clear()


_READ = """async ({paths, marked}) => await Promise.all(paths.map(async path => {
  const answer = await fetch(path);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  return [answer.status, page.querySelectorAll(marked).length, page.documentElement.textContent];
}))"""
_AT_ONCE = 10


def test_each_hostile_string_is_shown_as_text(watched: Watched) -> None:
    """Of each job, schedule and operation, and in lists, alerts and the audit log: as Chromium reads it, each string is
    in the text of the page, and makes no element of it."""
    rng = Random(8)
    strings = [hostile(rng) for _ in range(STRINGS)]
    app = make_app(alerts={"every": "20ms", "unattended": "10ms"})
    failing: Any = app.task(name="failing", queue="failing", retry=immediate(1))(_fail)

    async def fill() -> tuple[list[str], list[str]]:
        jobs = [
            replace(
                failing.options(key=text, tenant=text, group=text, headers={"x": text, "source": text}).job(text),
                queue=text,
            )
            for text in strings
        ]
        stored = await app.client.insert(jobs)
        await app.drain(strings)
        for text in strings:
            await app.schedules.put(Every("1h", NewJob(task=text, queue=text, args={"x": text}), name=text))
        await app.client.insert([NewJob(task="t", queue=text, run_at=_LONG_AGO) for text in strings])
        admin = Admin(app.client)
        made = [await admin.submit(f"reason:{quoted(text)}", "requeue", actor=text) for text in strings]
        return [one.id.hex() for one in stored], [one.id for one in made]

    with Place(app, watched.page, writes=True) as place:
        jobs, operations = place.run(fill())
        watched.page.goto(place.url + "/store")

        def read(*paths: str) -> list[str]:
            return texts(watched, paths)

        def shown(paths: list[str], times: int = 1) -> None:
            for text, page in zip(strings, read(*paths), strict=False):
                assert page.count(text) >= times, text

        shown([f"/job/{one}" for one in jobs], times=6)
        shown([f"/operation/{one}" for one in operations])
        shown([f"/schedule?{urlencode({'name': text})}" for text in strings])
        shown([f"/queue?{urlencode({'name': text})}" for text in strings[:100]])
        for place_of_list in ("/jobs", "/dead"):
            shown([f"{place_of_list}?{urlencode({'filter': f'queue:{quoted(text)}'})}" for text in strings[:100]])
        place.until(lambda: _alerts(place))
        [alerts] = read("/")
        assert all(text in alerts for text in strings)
        log = "".join(read(*(f"/audit?before={number}" for number in range(STRINGS + 1, 1, -50))))
        assert all(text in log for text in strings)
        read("/queues", "/jobs", "/dead", "/schedules", "/tenants", "/operations", "/janitor", "/store", "/vault")
    watched.complaints.clear()


def test_what_workers_and_handlers_say_is_text(watched: Watched, tmp_path: Path) -> None:
    """Names of workers, notes about progress, results, and why jobs were cancelled."""
    rng, app = Random(9), make_app(vault={"url": f"file://{tmp_path}"})
    strings = [hostile(rng) for _ in range(STRINGS)]
    says: Any = app.task(name="says", queue="says")(_say)

    async def fill() -> list[list[str]]:
        backend = await app.client.backend()
        running = await app.client.insert([NewJob(task=text, queue=text, tenant=text) for text in strings])
        for text in strings:
            [job] = (await backend.claim(Claim(text, (text,), 1, HOUR))).jobs
            note = {job.id: pack_progress(Progress(0.5, text))}
            beat = Beat(text, text, (text,), HOUR, [(job.id, job.epoch)], HOUR, 1, 1, progress=note)
            assert not (await backend.renew(beat)).lost
        ended = await app.client.insert([says.job(text) for text in strings])
        await app.drain(["says"])
        stopped = await app.client.insert([NewJob(task="t", queue="stopped") for _ in strings])
        for job, text in zip(stopped, strings, strict=True):
            await app.client.alter(Selector(ids=[job.id]), Cancel(text))
        return [[one.id.hex() for one in jobs] for jobs in (running, ended, stopped)]

    with Place(app, watched.page, writes=True) as place:
        running, ended, stopped = place.run(fill())
        page = watched.page
        page.goto(place.url + "/store")
        for paths, times in (
            ([f"/worker?{urlencode({'name': text})}" for text in strings], 5),
            ([f"/job/{one}" for one in running], 5),
            ([f"/job/{one}" for one in ended], 1),
            ([f"/job/{one}" for one in stopped], 1),
        ):
            for text, found in zip(strings, texts(watched, paths), strict=True):
                assert found.count(text) >= times or found.count(json_of(text)) >= times, (text, found)
        [workers] = texts(watched, ["/workers"])
        assert all(text in workers for text in strings)
        page.goto(place.url + "/vault")
        for text in strings[:30]:
            sql = f"""SELECT '{text.replace("'", "''")}' AS "{text.replace('"', '""')}\""""
            page.locator("textarea").fill(sql)
            page.get_by_role("button", name="Run").click()
            expect(page.locator("#answer td")).to_have_text(text)
            assert page.locator("#answer th").text_content() == text
            assert page.locator(_MARKED).count() == 0, text


def texts(watched: Watched, paths: Sequence[str]) -> list[str]:
    """The text of each page, as Chromium reads it. None has an element of a hostile string."""
    found = []
    for at in range(0, len(paths), _AT_ONCE):
        some = paths[at : at + _AT_ONCE]
        answers = watched.page.evaluate(_READ, {"paths": some, "marked": _MARKED})
        for path, (status, elements, text) in zip(some, answers, strict=True):
            assert (status, elements) == (200, 0), path
            found.append(text)
    return found


def json_of(text: str) -> str:
    """As a part of a result."""
    return json.dumps(text, ensure_ascii=False)


def quoted(text: str) -> str:
    """As a value of a filter."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


async def _alerts(place: Place) -> bool:
    address = parse_address(place.url.removeprefix("http://"))
    found = (await asyncio.to_thread(ask, address, "/api/v1/alerts")).json
    return len({one["queue"] for one in found}) >= STRINGS


async def _say(text: str) -> dict[str, str]:
    return {"said": text}


async def _fail(text: str) -> None:
    raise ValueError(text)
