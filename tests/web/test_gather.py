"""One port for several processes: streams that are left end, and what is away is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headrace.web.address import Address
from headrace.web.gather import PATIENCE, Gatherer
from headrace.web.server import server
from tests.facades.harness import within
from tests.web_client import ask


class Slow:
    """A process that answers probes at once, and takes its time for anything else."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        """What it was asked to do, and with how many bytes."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/livez":
            self.asked.append((scope["path"], len((await receive())["body"])))
            await asyncio.sleep(PATIENCE + 0.5)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})


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


async def test_what_takes_long_is_done_once(tmp_path: Path) -> None:
    """Janitor runs, queries of the vault: asked of the next process, too, they would happen twice."""
    children = [Slow(), Slow()]
    async with _behind_one_port(tmp_path, children) as address:
        answer = await asyncio.to_thread(ask, address, "/do/janitor", "POST", body=b"all")
        assert (answer.status, answer.text) == (200, "done")
    assert [child.asked for child in children] == [[("/do/janitor", 3)], []]


async def test_a_process_that_hangs_is_asked_nothing(tmp_path: Path) -> None:
    with Address("", 0, str(tmp_path / "0.sock")).listen():  # it accepts connections, and never answers
        child = Slow()
        async with _behind_one_port(tmp_path, [child], first=[tmp_path / "0.sock"]) as address:
            assert (await asyncio.to_thread(ask, address, "/do/janitor", "POST", body=b"all")).status == 200
        assert child.asked == [("/do/janitor", 3)]


async def test_a_process_that_dies_under_a_request(tmp_path: Path) -> None:
    """Nobody knows whether it had done it, so no other process is asked."""

    async def cuts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"/livez" in await reader.readuntil(b"\r\n"):
            writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
        writer.close()

    other = Slow()
    async with (
        await asyncio.start_unix_server(cuts, tmp_path / "0.sock"),
        _behind_one_port(tmp_path, [other], first=[tmp_path / "0.sock"]) as address,
    ):
        answer = await asyncio.to_thread(ask, address, "/do/janitor", "POST", body=b"all")
    assert (answer.status, other.asked) == (504, [])
    assert "it may have done it" in answer.text


async def test_bodies_are_not_read_before_somebody_has_looked_at_their_size(tmp_path: Path) -> None:
    child = Slow()
    async with _behind_one_port(tmp_path, [child]) as address:
        for size in (b"Content-Length: 50000000", b"Transfer-Encoding: chunked"):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(b"POST /do/janitor HTTP/1.1\r\nHost: localhost\r\n" + size + b"\r\n\r\n")
            assert b" 413 " in await within(reader.readuntil(b"\r\n")), "it waits for a body that never comes"
            writer.close()
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000000\r\n\r\n")
        assert b" 200 " in await within(reader.readuntil(b"\r\n")), "nobody reads what comes with a question"
        writer.close()
    assert child.asked == [("/api/v1/jobs", 0)]


@asynccontextmanager
async def _behind_one_port(directory: Path, apps: Sequence[Any], first: Sequence[Path] = ()) -> AsyncIterator[Address]:
    """Serve these apps behind one port, after what listens at ``first``."""
    paths = [directory / f"{number}.sock" for number, _ in enumerate(apps, 1)]
    listening = Address("127.0.0.1", 0).listen()
    serving = [(server(Gatherer([*first, *paths])), listening)]
    serving += [(server(app), Address("", 0, str(path)).listen()) for app, path in zip(apps, paths, strict=True)]
    async with asyncio.TaskGroup() as group:
        for one, sock in serving:
            group.create_task(one.serve([sock]))
        yield Address(*listening.getsockname()[:2])
        for one, _ in serving:
            one.should_exit = True
