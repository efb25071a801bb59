"""Names, payloads and errors of strangers are text on every page, and nothing else."""

from __future__ import annotations

from random import Random
from typing import Any
from urllib.parse import urlencode

from msgspec.structs import replace

from headrace import Every, NewJob
from tests.dashboard.conftest import Watched
from tests.dashboard.place import Place, make_app

STRINGS = 500
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


async def _fail(text: str) -> None:
    raise ValueError(text)
