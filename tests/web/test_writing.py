"""Changes over HTTP: by operators only, noted under their names, and bulk operations done by the server itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.web.conftest import bearer

OPERATOR = bearer("operator")


async def post(place: Any, path: str, body: Any = None, headers: dict[str, str] = OPERATOR) -> Any:
    return await place.ask(path, "POST", headers=headers, body=None if body is None else json.dumps(body).encode())


async def test_dead_letters_are_requeued_in_bulk(site: Any) -> None:
    place = await site(tokens=True, writes=True)
    send = place.app.tasks["send"]
    await place.app.enqueue_many([send.job(13) for _ in range(30)])
    await place.app.drain()
    preview = (await place.ask("/api/v1/count?filter=state:dead", headers=OPERATOR)).json
    given = {"filter": "state:dead", "action": "requeue", "expected": preview["number"]}
    answer = await post(place, "/api/v1/operations", given)
    assert answer.status == 200, answer.text
    path = f"/api/v1/operations/{answer.json['id']}"
    async with asyncio.timeout(60):
        while (found := (await place.ask(path, headers=OPERATOR)).json)["state"] != "completed":
            await asyncio.sleep(0.05)
    assert (found["met"], found["changed"], found["actor"]) == (30, 30, "ada")
    [listed] = (await place.ask("/api/v1/operations", headers=OPERATOR)).json
    assert listed["id"] == found["id"]
    [entry] = (await place.ask("/api/v1/audit", headers=OPERATOR)).json
    assert (entry["actor"], entry["action"]) == ("ada", "submit requeue")


async def test_jobs_and_queues_are_changed(site: Any) -> None:
    place = await site(tokens=True, writes=True)
    send = place.app.tasks["send"]
    handle = await send.enqueue(1, "s3cret")
    [changed] = (await post(place, "/api/v1/jobs", {"ids": [str(handle.id)], "action": "pause"})).json
    assert (changed["before"], changed["after"]) == ("available", "paused")
    for name in ("a/b", "a%2Fb", "a/pause"):
        paused = (await post(place, f"/api/v1/queues/{name}/pause")).json
        assert (paused["name"], paused["paused"]) == (name.replace("%2F", "/"), True)
        assert (await place.ask(f"/api/v1/queues/{name}", headers=OPERATOR)).json == paused
        await post(place, f"/api/v1/queues/{name}/resume")
    assert (await post(place, "/api/v1/queues/mail/pause", {"lasts": "1h"})).json["paused"]
    assert not (await post(place, "/api/v1/queues/mail/resume")).json["paused"]
    revealed = (await post(place, f"/api/v1/jobs/{handle.id}/reveal")).json
    assert revealed["job"]["args"] == {"user": 1, "token": "s3cret"}
    actions = [one["action"] for one in (await place.ask("/api/v1/audit?limit=3", headers=OPERATOR)).json]
    assert actions == ["reveal", "resume queue", "pause queue"]


async def test_what_is_wrong_is_said(site: Any) -> None:
    place = await site(tokens=True, writes=True)
    for path, body, told in (
        ("/api/v1/jobs", {"ids": ["7"], "action": "requeue"}, "id"),
        ("/api/v1/jobs", {"ids": [], "action": "explode"}, "action: expected one of"),
        ("/api/v1/jobs", {"id": []}, "body: expected JSON"),
        ("/api/v1/jobs", None, "body: expected JSON"),
        ("/api/v1/operations", {"filter": "colour:red", "action": "delete"}, "unknown field"),
        ("/api/v1/operations", [1], "body"),
        ("/api/v1/queues/mail/pause", {"lasts": "soon"}, "duration"),
    ):
        answer = await post(place, path, body)
        assert answer.status == 400, (path, answer.text)
        assert told in answer.json["error"]
    assert (await place.ask("/api/v1/audit?before=x", headers=OPERATOR)).status == 400


async def test_others_change_nothing(site: Any) -> None:
    place = await site(tokens=True, writes=True)
    handle = await place.app.tasks["send"].enqueue(1)
    given = {"ids": [str(handle.id)], "action": "delete"}
    for headers in (bearer("viewer"), bearer("probe"), OPERATOR | {"Origin": "https://evil.example"}):
        assert (await post(place, "/api/v1/jobs", given, headers)).status == 403
    assert (await post(place, "/api/v1/jobs", given, {})).status == 401
    assert (await place.ask(f"/api/v1/jobs/{handle.id}", headers=OPERATOR)).status == 200
    assert (await place.ask("/api/v1/audit", headers=OPERATOR)).json == []
