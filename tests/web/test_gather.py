"""One port for several processes: streams that are left end, and what is away is said."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from headrace.web.address import Address
from headrace.web.gather import Gatherer
from headrace.web.server import server
from tests.facades.harness import within
from tests.web_client import ask


class Child:
    """A process that streams without an end, and notes who has left."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"first\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()


async def test_a_stream_that_is_left_ends_in_the_process_that_sends_it(tmp_path: Path) -> None:
    child, path = Child(), tmp_path / "1.sock"
    behind = server(child)
    front = server(Gatherer([tmp_path / "none.sock", path]))
    address = Address("127.0.0.1", 0)
    listening = address.listen()
    async with asyncio.TaskGroup() as group:
        group.create_task(behind.serve([Address("", 0, str(path)).listen()]))
        group.create_task(front.serve([listening]))
        reader, writer = await asyncio.open_connection(*listening.getsockname()[:2])
        writer.write(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await within(reader.readuntil(b"first\n"))
        writer.close()
        await within(child.left.wait())
        behind.should_exit = front.should_exit = True


async def test_processes_that_are_away(tmp_path: Path) -> None:
    front = server(Gatherer([tmp_path / "1.sock", tmp_path / "2.sock"]))
    listening = Address("127.0.0.1", 0).listen()
    address = Address(*listening.getsockname()[:2])
    async with asyncio.TaskGroup() as group:
        group.create_task(front.serve([listening]))
        ready = await asyncio.to_thread(ask, address, "/readyz")
        assert (ready.status, ready.json["problems"]) == (
            503,
            ["process 1 does not answer", "process 2 does not answer"],
        )
        assert (await asyncio.to_thread(ask, address, "/api/v1/jobs")).status == 503
        assert (await asyncio.to_thread(ask, address, "/metrics")).status == 200
        front.should_exit = True
