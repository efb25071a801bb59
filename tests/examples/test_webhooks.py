"""The example of webhooks: parameters and body apart, retries that remember, teams that hold up nobody else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from asyncio import StreamWriter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import msgspec
import pytest
import webhooks
from fetcher import Answer, Fetcher, Refused, Rules
from hypothesis import given
from hypothesis.strategies import text
from receiver import Receiver, Seen, response
from webhooks import OVERFLOW, QUEUE, History, app, retry_after, send, set_rules, webhook

from headrace import Handle, JobState, NewJob
from headrace.seam.records import Claim, Reap, Requeue, Selector
from headrace.testing.jobs import AppJobs, in_memory

RUN = Path(__file__).parents[2] / "examples" / "webhooks" / "run.py"
PATIENCE = 60.0


@pytest.fixture
def jobs() -> Iterator[AppJobs]:
    with in_memory(app) as jobs:
        yield jobs


@pytest.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server ``hooks.test``: ``/503/7`` is answered twice with status 503 and Retry-After 7, then with 200."""

    async def respond(seen: Seen, writer: StreamWriter) -> None:
        _, status, *after = seen.target.split("/")
        tries = sum(seen.target == other.target for other in receiver.seen)
        headers = {"retry-after": after[0]} if after else {}
        writer.write(response(200 if tries > 2 else int(status), headers, b"so"))

    async def resolver(host: str, port: int) -> Sequence[str]:
        return {"hooks.test": ["127.0.0.1"], "inside.test": ["169.254.169.254"]}[host]

    async with Receiver(respond) as receiver:
        rules = Rules(ports=frozenset({receiver.port}), allowed=[ip_network("127.0.0.1/32")])
        monkeypatch.setattr(webhooks, "fetcher", Fetcher(rules, resolver=resolver))
        yield receiver


async def one(new: NewJob) -> Handle[object]:
    [handle] = await send(new)
    return handle


async def history(handle: Handle[object]) -> History:
    """What is stored of a webhook's tries."""
    record = await app.client.fetch(handle.id)
    assert record is not None
    _, state = app.client.packer.envelope.unwrap(record.cells["vm_state"], "vm_state", record.id, record.tenant)
    return msgspec.json.decode(state, type=History)


async def test_parameters_and_body_are_apart(jobs: AppJobs) -> None:
    body = b'{"a": "%s"}' % (b"b" * 5_000)
    handle = await one(webhook("acme", "https://hooks.test/", body, headers={"X-A": "b"}, timeout=5))
    [info] = jobs.assert_enqueued(webhooks.deliver, queue=QUEUE, tenant="acme")
    where = {"url": "https://hooks.test/", "method": "POST", "headers": {"X-A": "b"}}
    assert info.args == where | {"timeout": 5, "return_queue": None}
    record = await app.client.fetch(handle.id)
    assert record is not None
    assert set(record.cells) == {"parameters", "blob"}
    assert app.client.packer.envelope.unwrap(record.cells["blob"], "blob", record.id, record.tenant)[1] == body
    light = await app.client.fetch(handle.id, frozenset({"parameters"}))
    assert light is not None
    assert set(light.cells) == {"parameters"}
    assert sum(map(len, light.cells.values())) < 200


@pytest.mark.parametrize("body", [b"", b"\0\xff", b'{"n": 1}', bytes(1_000_000)], ids=["none", "bytes", "json", "1 MB"])
async def test_what_is_delivered(jobs: AppJobs, receiver: Receiver, body: bytes) -> None:
    url = f"http://hooks.test:{receiver.port}/204"
    handle = await one(webhook("acme", url, body, method="PUT", headers={"X-A": "b", "content-type": "text/plain"}))
    await jobs.drain()
    [seen] = receiver.seen
    assert (seen.method, seen.body) == ("PUT", body)
    assert (seen.headers["x-a"], seen.headers["content-type"]) == ("b", "text/plain")
    assert seen.headers["webhook-id"] == str(handle.id)
    assert await handle.result(0) == {"status": 204, "tries": 1}


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 599])
async def test_later_means_later(jobs: AppJobs, receiver: Receiver, status: int) -> None:
    """The body and what is known of earlier tries are there at every try."""
    handle = await one(webhook("acme", f"http://hooks.test:{receiver.port}/{status}/7", b"body"))
    assert (await handle.info()).state is JobState.AVAILABLE
    await jobs.drain()
    for tries in (1, 2):
        assert [one.status for one in (await history(handle)).tries] == [status] * tries
        jobs.clock.advance("6.9s")
        await jobs.drain()
        assert len(receiver.seen) == tries
        jobs.clock.advance("0.1s")
        await jobs.drain()
    assert [seen.body for seen in receiver.seen] == [b"body"] * 3
    assert await handle.result(0) == {"status": 200, "tries": 3}
    told = await history(handle)
    assert [(one.status, one.said) for one in told.tries] == [(status, "so"), (status, "so"), (200, "so")]


@pytest.mark.parametrize("status", [301, 302, 304, 400, 401, 403, 404, 410, 413, 422])
async def test_no_means_no(jobs: AppJobs, receiver: Receiver, status: int) -> None:
    handle = await one(webhook("acme", f"http://hooks.test:{receiver.port}/{status}", b"body"))
    await jobs.drain()
    info = await handle.info()
    assert (info.state, info.reason, info.attempt) == (JobState.FAILED, "failed", 1)
    assert info.failures[-1].message.startswith(f"status {status}")
    assert [one.status for one in (await history(handle)).tries] == [status]
    assert len(receiver.seen) == 1


async def test_a_dead_letter_keeps_body_and_history_and_can_be_sent_again(jobs: AppJobs, receiver: Receiver) -> None:
    handle = await one(webhook("acme", f"http://hooks.test:{receiver.port}/404", b"body"))
    await jobs.drain()
    for _ in range(2):
        assert await app.client.alter_all(Selector(states=frozenset({JobState.FAILED})), Requeue()) == 1
        await jobs.drain()
    assert await handle.result(0) == {"status": 200, "tries": 3}
    assert receiver.seen[-1].body == b"body"


async def test_without_an_answer_it_is_tried_until_attempts_run_out(jobs: AppJobs, receiver: Receiver) -> None:
    url = f"http://127.0.0.1:{receiver.port}/"
    await receiver.__aexit__()  # nobody listens any more
    handle = await one(webhook("acme", url, b"body"))
    for _ in range(8):
        assert not (await handle.info()).state.terminal
        await jobs.drain()
        jobs.clock.advance("1h")
    info = await handle.info()
    assert (info.state, info.reason, info.attempt) == (JobState.FAILED, "retries exhausted", 8)
    tries = (await history(handle)).tries
    assert [one.status for one in tries] == [0] * 8
    assert "connect" in tries[-1].said


@pytest.mark.parametrize(("status", "tries"), [(204, [204]), (404, [404]), (0, [0] * 8)], ids=["yes", "no", "away"])
async def test_with_a_return_queue_it_goes_on_there(
    jobs: AppJobs, receiver: Receiver, status: int, tries: list[int]
) -> None:
    """However it went: whoever pulls it there has its history, and ends it."""
    url = f"http://hooks.test:{receiver.port}/{status}"
    if not status:
        await receiver.__aexit__()
    handle = await one(webhook("acme", url, b"body", return_queue="outcomes"))
    for _ in tries:
        assert (await handle.info()).queue == QUEUE
        await jobs.drain()
        jobs.clock.advance("1h")
    info = await handle.info()
    assert (info.queue, info.state, info.attempt) == ("outcomes", JobState.AVAILABLE, len(tries) - 1)
    async with app.pull("outcomes", want={"vm_state"}) as pull:
        [job] = await pull.take(wait=PATIENCE)
        assert job.id == handle.id
        told = msgspec.json.decode(job.section("vm_state") or b"", type=History)
        assert [one.status for one in told.tries] == tries
        job.set_state("completed")
        await job.release()
    assert (await handle.info()).state is JobState.COMPLETED


async def test_worker_faults_consume_no_tries(jobs: AppJobs, receiver: Receiver) -> None:
    """Workers die, or lose their machine, with the job in their hands."""
    handle = await one(webhook("acme", f"http://hooks.test:{receiver.port}/204", b"body"))
    backend = await app.client.backend()
    for lost in (1, 2):
        assert (await backend.claim(Claim("dead", (QUEUE,), 1, 30_000_000), app.client.clock.stamp())).jobs
        jobs.clock.advance("31s")
        assert await backend.reap(Reap(), app.client.clock.stamp())
        info = await handle.info()
        assert (info.state, info.attempt, info.lost) == (JobState.AVAILABLE, 0, lost)
    await jobs.drain()
    assert await handle.result(0) == {"status": 204, "tries": 1}


async def test_history_does_not_grow_for_ever() -> None:
    told = History()
    for number in range(100):
        told = told.with_try(webhooks.Try(datetime.now(UTC), 0.1, number))
    assert [one.status for one in told.tries] == [*range(90, 100)]


@pytest.mark.parametrize("host", ["inside.test", "hooks.test"])
async def test_what_must_not_be_reached_is_a_dead_letter_at_once(jobs: AppJobs, receiver: Receiver, host: str) -> None:
    async def redirect(seen: Seen, writer: StreamWriter) -> None:
        writer.write(response(308, {"location": f"http://inside.test:{receiver.port}/"}))

    receiver.respond = redirect
    handle = await one(webhook("acme", f"http://{host}:{receiver.port}/", b"body"))
    await jobs.drain()
    info = await handle.info()
    assert (info.state, info.attempt) == (JobState.FAILED, 1)
    assert info.failures[-1].message.endswith(f"http://inside.test:{receiver.port}: the address is not allowed")
    assert [one.status for one in (await history(handle)).tries] == [0]
    assert receiver.connections == (host == "hooks.test")


async def test_what_is_out_of_the_question_is_not_even_stored(jobs: AppJobs) -> None:
    for url in ("http://127.0.0.1/", "https://[::1]/", "http://0x7f.1/", "file:///etc/passwd", "http://hooks.test:22/"):
        with pytest.raises(Refused):
            webhook("acme", url, b"")
    with pytest.raises(Refused):
        webhook("acme", "https://hooks.test/", b"", headers={"Host": "inside.test"})
    assert jobs.all() == []


async def test_parameters_that_make_no_sense_are_a_dead_letter(jobs: AppJobs, receiver: Receiver) -> None:
    made_up = [{}, {"url": 7}, {"url": "http://hooks.test/", "method": "TRACE"}, {"url": "x", "headers": ["a"]}]
    handles = await send(*(NewJob(task="deliver", queue=QUEUE, args=args) for args in made_up))
    await jobs.drain()
    assert [(await handle.info()).reason for handle in handles] == ["payload cannot be used"] * 4
    assert receiver.connections == 0


# Retry-After


def answer(retry: str) -> Answer:
    return Answer(503, {"retry-after": retry}, b"", False, "http://hooks.test/", "127.0.0.1")


@pytest.mark.parametrize(
    ("retry", "seconds"),
    [
        ("7", 7),
        (" 7 ", 7),
        ("0", None),
        ("-1", None),
        ("", None),
        ("soon", None),
        ("1.5", None),
        ("٣", None),
        ("9" * 4_000, 3_600),
        ("86400", 3_600),
        ("Mon, 01 Jan 2001 00:00:00 GMT", None),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3_600),
        ("Fri, 31 Dec 9999 23:59:59 -2359", 3_600),
        ("Fri, 31 Dec 9999 23:59:59 +99999999999999999999", None),
    ],
)
def test_what_a_receiver_may_ask_for(retry: str, seconds: float | None) -> None:
    assert retry_after(answer(retry)) == seconds


@pytest.mark.parametrize("zone", [UTC, None])
def test_a_receiver_may_name_an_instant(zone: Any) -> None:
    at = (datetime.now(UTC) + timedelta(seconds=600)).replace(tzinfo=zone)
    seconds = retry_after(answer(format_datetime(at, usegmt=zone is not None)))
    assert seconds is not None
    assert 500 < seconds <= 600


@given(text())
def test_whatever_a_receiver_asks_for(retry: str) -> None:
    seconds = retry_after(answer(retry))
    assert seconds is None or 0 < seconds <= 3_600


# Teams


async def test_a_team_has_no_more_than_its_share_under_way(jobs: AppJobs, receiver: Receiver) -> None:
    under_way = most = 0
    others = asyncio.Event()

    async def respond(seen: Seen, writer: StreamWriter) -> None:
        nonlocal under_way, most
        if seen.target == "/bolt":
            if sum(one.target == "/bolt" for one in receiver.seen) == 6:
                others.set()
        else:
            under_way += 1
            most = max(most, under_way)
            await others.wait()  # acme's webhooks hang until all of bolt's have come
            under_way -= 1
        writer.write(response(200))

    receiver.respond = respond
    await set_rules()
    await app.policies.set(QUEUE, tenant_running=2)
    new = [webhook(team, f"http://hooks.test:{receiver.port}/{team}", b"") for team in ["acme"] * 8 + ["bolt"] * 6]
    handles = await send(*new)
    async with asyncio.timeout(PATIENCE):
        await jobs.drain()
    assert [(await handle.info()).state for handle in handles] == [JobState.COMPLETED] * 14
    assert most == 2


async def test_a_flood_goes_to_the_overflow_and_holds_up_nobody(jobs: AppJobs, receiver: Receiver) -> None:
    await set_rules()
    await app.policies.set(QUEUE, depth=20, tenant_running=2)
    url = f"http://hooks.test:{receiver.port}/200"
    flood = await send(*(webhook("acme", f"{url}/{number}", b"") for number in range(100)))
    late = await one(webhook("bolt", f"{url}/bolt", b""))
    queues = [(await handle.info()).queue for handle in flood]
    assert queues == [QUEUE] * 20 + [OVERFLOW] * 80
    assert (await late.info()).queue == OVERFLOW
    async with asyncio.timeout(PATIENCE):
        await jobs.drain()
    assert len(receiver.seen) == 101
    [turn] = [turn for turn, seen in enumerate(receiver.seen) if "bolt" in seen.target]
    assert turn < 40  # not after the 80 that came before it


# The program


def test_the_demo_runs(tmp_path: Path) -> None:
    given = {name: value for name, value in os.environ.items() if name != "HEADRACE_URL"}
    done = subprocess.run(
        [sys.executable, RUN], cwd=tmp_path, env=given, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [" ".join(line.split()) for line in done.stdout.splitlines()] == [
        "http://hooks.example/fine delivered: status 204 at try 1",
        "http://hooks.example/busy delivered: status 204 at try 3",
        "http://hooks.example/gone failed: status 410: we no longer listen",
        "http://hooks.example/moved failed: http://evil.example: the address is not allowed",
        "http://evil.example/ failed: http://evil.example: the address is not allowed",
        "of 200 webhooks of one team, 45 fit into the queue, the others took the overflow",
        "3 of another team came after them and were not held up",
    ]
