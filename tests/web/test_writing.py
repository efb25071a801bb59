"""Changes over HTTP: by operators only, noted under their names, and bulk operations done by the server itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headrace import App, Every, JobState
from headrace.core.config import HttpSettings
from headrace.seam.records import Claim, Row, Settlement
from headrace.web.server import serve_http
from tests.facades.harness import settings
from tests.web.conftest import LINES, Site, bearer

OPERATOR = bearer("operator")
HOUR = 3_600_000_000


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


async def test_schedules_limits_and_tenants(site: Any) -> None:
    place = await site(tokens=True, writes=True)
    app, send = place.app, place.app.tasks["send"]
    await app.schedules.put(Every("1h", send.job(2, "s3cret"), name="every/hour"))
    [listed] = (await place.ask("/api/v1/schedules", headers=OPERATOR)).json
    assert (listed["name"], "s3cret" in str(listed)) == ("every/hour", False)
    one = "/api/v1/schedules/every/hour"
    assert not (await post(place, f"{one}/pause")).json["enabled"]
    assert not (await place.ask(one, headers=OPERATOR)).json["enabled"]
    assert (await post(place, f"{one}/resume")).json["enabled"]
    ran = (await post(place, f"{one}/run")).json["job"]
    assert (await app.client.get(UUID(ran))).task == "send"
    assert (await place.ask("/api/v1/schedules/none", headers=OPERATOR)).status == 404

    assert (await post(place, "/api/v1/limits/mail", {"running": 5, "tenant_running": 2})).json["running"] == 5
    changed = (await post(place, "/api/v1/limits/mail", {"running": None, "rate": "9/s"})).json
    assert (changed["running"], changed["rate"], changed["tenant_running"]) == (None, "9/s", 2)
    assert (await place.ask("/api/v1/limits/mail", headers=OPERATOR)).json == changed
    assert [rules["queue"] for rules in (await place.ask("/api/v1/limits", headers=OPERATOR)).json] == ["mail"]

    await send.options(tenant="acme").enqueue(1)
    await post(place, "/api/v1/tenants/limit", {"queue": "mail", "tenant": "acme", "running": 7})
    assert "mail" in (await post(place, "/api/v1/tenants/pause", {"tenant": "acme", "lasts": "1h"})).json
    found = (await place.ask("/api/v1/tenants?queue=mail", headers=OPERATOR)).json
    [acme] = [tenant for tenant in found if tenant["tenant"] == "acme"]
    assert (acme["limit"], acme["paused"]) == (7, True)
    assert "mail" in (await post(place, "/api/v1/tenants/resume", {"tenant": "acme"})).json
    told = [one["action"] for one in (await place.ask("/api/v1/audit", headers=OPERATOR)).json]
    assert told == [
        "resume tenant", "pause tenant", "limit tenant", "limit queue", "limit queue", "run schedule",
        "resume schedule", "pause schedule",
    ]  # fmt: skip


async def test_retention_the_budget_and_the_vault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SITE_TOKENS", LINES)
    app = App(settings(url=f"sqlite:///{tmp_path}/jobs.db", vault={"url": f"file://{tmp_path}/vault"}))
    http = HttpSettings(address="0", tokens="env:SITE_TOKENS", writes=True)
    async with app, serve_http(app, http) as address:
        place = Site(app, address)
        await end_long_ago(app, 3)
        assert await app.vault.archive() == 3
        for path in ("preview", "rules", "runs"):
            assert (await place.ask(f"/api/v1/janitor/{path}", headers=OPERATOR)).status == 200
        assert (await post(place, "/api/v1/janitor/run", {"force": True})).json["forced"]
        [run] = (await place.ask("/api/v1/janitor/runs", headers=OPERATOR)).json
        assert run["forced"]
        assert (await post(place, "/api/v1/budget", {"bytes": 10**9})).json["limit"] == 10**9
        assert (await place.ask("/api/v1/budget", headers=OPERATOR)).json["budget"]
        assert not (await post(place, "/api/v1/budget", {"bytes": None})).json["budget"]
        assert len((await place.ask("/api/v1/vault", headers=OPERATOR)).json) == 1
        assert (await place.ask("/api/v1/vault?since=soon", headers=OPERATOR)).status == 400
        sql = "SELECT task, count(*) AS n, max(ended_at) - min(ended_at) AS took FROM jobs GROUP BY task"
        answer = await post(place, "/api/v1/vault/query", {"sql": sql})
        assert answer.status == 200, answer.text
        found = answer.json
        assert (found["columns"], found["rows"][0][:2]) == (["task", "n", "took"], ["send", 3])
        assert (await post(place, "/api/v1/vault/query", {"sql": sql}, bearer("viewer"))).status == 403


async def end_long_ago(app: App, count: int) -> None:
    """Jobs that completed an hour ago."""
    backend, at = await app.client.backend(), await app.client.store_now() - HOUR
    await backend.insert([Row(id=bytes([n]) * 16, queue="mail", task="send", cells={}) for n in range(count)], at)
    jobs = (await backend.claim(Claim("h", ("mail",), count, HOUR), at)).jobs
    await backend.finish([Settlement(job.id, job.epoch, "h", JobState.COMPLETED) for job in jobs], at)


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
        ("/api/v1/limits/mail", {"runing": 5}, "runing"),
        ("/api/v1/limits/mail", {"rate": "fast"}, "rate"),
        ("/api/v1/budget", {}, "bytes"),
        ("/api/v1/vault/query", {"sql": "SELECT 1"}, "vault"),
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
