"""The admin API over HTTP."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from headrace import Admin

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\u202e",
    "../../x",
    "%2e%2e",
    "'; DROP",
    'a"} 1',
]


async def test_what_it_answers_is_what_the_admin_api_answers(site: Any) -> None:
    place = await site()
    send = place.app.tasks["send"]
    handles = [await send.options(key=f"user-{user}").enqueue(user, "s3cret") for user in range(12, 15)]
    await place.app.drain()
    admin = Admin(place.app.client)
    overview = (await place.ask("/api/v1/overview")).json
    assert overview["queues"] == [one.to_dict() for one in await admin.queues()]
    assert (await place.ask("/api/v1/queues/mail")).json["failed"] == 1
    assert (await place.ask("/api/v1/workers")).json == []
    page = (await place.ask("/api/v1/jobs?filter=state:dead%20args.user%3D13")).json
    assert [job["id"] for job in page["jobs"]] == [str(handles[1].id)]
    assert (await place.ask("/api/v1/count?filter=state:ended")).json == {"number": 3, "exact": True}
    for path in (f"/api/v1/jobs/{handles[1].id}", "/api/v1/job?queue=mail&key=user-13"):
        details = (await place.ask(path)).json
        assert details == (await admin.job(handles[1].id)).to_dict()
        assert details["job"]["args"] == {"user": 13, "token": "•••"}
        assert "s3cret" not in str(details)


async def test_pages_lead_to_pages(site: Any) -> None:
    place = await site()
    send = place.app.tasks["send"]
    await place.app.enqueue_many([send.job(user) for user in range(25)])
    seen: list[str] = []
    after = ""
    while True:
        page = (await place.ask(f"/api/v1/jobs?limit=10{after}")).json
        seen += [job["id"] for job in page["jobs"]]
        if page["after"] is None:
            break
        after = f"&after={page['after']}"
    assert len(set(seen)) == len(seen) == 25


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/api/v1/jobs?filter=colour:red", 400, "unknown field"),
        ("/api/v1/jobs?limit=x", 400, "limit"),
        ("/api/v1/jobs?limit=0", 400, "limit"),
        ("/api/v1/jobs?after=zzz", 400, "after"),
        ("/api/v1/jobs/7", 400, "id"),
        (f"/api/v1/jobs/{UUID(int=7)}", 404, "no job"),
        ("/api/v1/job?queue=mail", 400, "queue and key"),
        ("/api/v1/job?queue=mail&key=x", 404, "no job"),
        ("/api/v1/queues/none", 404, "no queue"),
        ("/api/v1/nothing", 404, "no such page"),
        ("/scale/mail?slots=0", 400, "slots"),
        ("/scale/mail?slots=99999999999999999999", 400, "slots"),
    ],
)
async def test_what_is_wrong_is_said(site: Any, path: str, status: int, told: str) -> None:
    answer = await (await site()).ask(path)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
    assert told in answer.json["error"]


async def test_hostile_names_come_back_as_text(site: Any) -> None:
    place = await site()
    send = place.app.tasks["send"]
    for name in HOSTILE:
        await send.options(queue=name, tenant=name, key=name, headers={name: name}).enqueue(1)
    answer = await place.ask("/api/v1/jobs?limit=100")
    assert answer.headers["content-type"] == "application/json"
    assert {job["queue"] for job in answer.json["jobs"]} == {*HOSTILE}
    metrics = await place.ask("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert metrics.text.count("headrace_queue_paused{") == len(HOSTILE), "one line for each"


async def test_numbers_for_autoscalers(site: Any) -> None:
    place = await site()
    send = place.app.tasks["send"]
    await place.app.enqueue_many([send.options(queue="a/b").job(user) for user in range(25)])
    await send.options(queue="a/b", delay="1h").enqueue(1)
    found = (await place.ask("/scale/a/b")).json
    assert (found["ready"], found["scheduled"], found["workers"], found["desired"]) == (25, 1, 0, 3)
    assert (await place.ask("/scale/a/b?slots=5")).json["desired"] == 5
    await place.app.client.pause("a/b")
    assert (await place.ask("/scale/a/b")).json["desired"] == 0
    assert set((await place.ask("/scale/none")).json.values()) == {0}


async def test_openapi_describes_every_route(site: Any, apps: list[Any]) -> None:
    """All but the pages for people, and itself."""
    document = (await (await site()).ask("/openapi.json")).json
    assert document["openapi"].startswith("3.1")
    served = {
        (method, route.path.replace(":path}", "}"))
        for route in apps[0]._app.routes
        for method in route.methods - {"HEAD"}
        if route.path.startswith(("/api/", "/scale/", "/metrics")) or route.path in ("/livez", "/readyz", "/startupz")
    }
    assert len(served) > 20
    paths = document["paths"].items()
    assert {(method.upper(), path) for path, methods in paths for method in methods} == served
    for path, methods in document["paths"].items():
        for operation in methods.values():
            [answer] = operation["responses"]["200"]["content"].values()
            assert answer["schema"], path
            named = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
            assert named == {part.strip("{}") for part in path.split("/") if part.startswith("{")}
    assert "JobDetails" in document["components"]["schemas"]
