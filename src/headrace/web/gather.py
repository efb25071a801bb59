"""One port for several processes: each serves on a socket of its own, and this one asks them all."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from msgspec import Struct
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.core.config import HttpSettings
from headrace.web.families import expose
from headrace.web.guard import SAFE, check_size, problem
from headrace.web.server import listen, server

log = logging.getLogger("headrace.http")

PATIENCE = 2.5
"""Seconds that a process has to answer a probe."""
_LONGEST = 600.0
"""Seconds that a process has for what it is asked to do."""
_PROBES = ("/livez", "/readyz", "/startupz")
_HOPS = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"content-length"})


class Reply(Struct, frozen=True):
    """What a process answered."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read(self) -> bytes:
        """The whole body."""
        try:
            return await self.body.read()
        finally:
            self.writer.close()


class Gatherer:
    """An ASGI app in front of the apps of several processes. It checks nothing but the size of what it hands on: they
    do, as each gets the request with all its headers."""

    def __init__(self, sockets: Sequence[Path]) -> None:
        self._sockets = sockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] in _PROBES:
            await (await self._probe(scope))(scope, receive, send)
        elif scope["path"] == "/metrics":
            await (await self._metrics(scope))(scope, receive, send)
        elif scope["method"] in SAFE:
            await self._hand_on(scope, b"", receive, send)
        elif (refusal := check_size(Headers(scope=scope))) is not None:
            await refusal(scope, receive, send)
        else:
            await self._hand_on(scope, await Request(scope, receive).body(), receive, send)

    async def _probe(self, scope: Scope) -> Response:
        """All processes must be well."""
        problems: list[str] = []
        for number, reply in enumerate(await self._all(scope), 1):
            if reply is None:
                problems.append(f"process {number} does not answer")
                continue
            status, body = reply
            if status in (401, 403):
                return Response(body, status, media_type="application/json")
            if status != 200:
                problems += [f"process {number}: {one}" for one in _problems(body)]
        verdict = msgspec.json.encode({"ok": not problems, "problems": problems})
        return Response(verdict, 503 if problems else 200, media_type="application/json")

    async def _metrics(self, scope: Scope) -> Response:
        """What they count, added up. One of them asks the store."""
        without = {**scope, "query_string": b"store=no"}
        replies = [reply for reply in await self._all(without) if reply is not None]
        with_store = await self._first(scope)
        refused = next((one for one in replies if one[0] != 200), None)
        if refused is not None:
            return Response(refused[1], refused[0], media_type="application/json")
        families: dict[str, Metric] = {}
        for _, text in replies:
            _add(families, text_string_to_metric_families(text.decode()))
        if with_store is not None:
            store = text_string_to_metric_families(with_store[1].decode())
            families |= {family.name: family for family in store if family.name not in families}
        return Response(expose(families.values()), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _all(self, scope: Scope) -> list[tuple[int, bytes] | None]:
        return await asyncio.gather(*(self._whole(path, scope) for path in self._sockets))

    async def _first(self, scope: Scope) -> tuple[int, bytes] | None:
        for path in self._sockets:
            if (found := await self._whole(path, scope)) is not None:
                return found
        return None

    async def _whole(self, path: Path, scope: Scope) -> tuple[int, bytes] | None:
        try:
            async with asyncio.timeout(2 * PATIENCE if scope["path"] == "/metrics" else PATIENCE):
                reply = await _ask(path, scope, b"")
                return reply.status, await reply.read()
        except (OSError, TimeoutError, ValueError):
            return None

    async def _answers(self, path: Path, scope: Scope) -> bool:
        try:
            async with asyncio.timeout(PATIENCE):
                (await _ask(path, scope, b"")).writer.close()
                return True
        except (OSError, TimeoutError, ValueError):
            return False

    async def _hand_on(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """The first that answers a probe gets the request, and no other: it may have begun when it fails. What comes
        bit by bit is handed on bit by bit."""
        probe = {**scope, "method": "GET", "raw_path": b"/livez", "query_string": b""}
        for path in self._sockets:
            if not await self._answers(path, probe):
                continue
            try:
                async with asyncio.timeout(_LONGEST):
                    reply = await _ask(path, scope, body)
            except (OSError, TimeoutError, ValueError):
                lost = problem(504, "the process that was asked gave no answer; it may have done it")
                await lost(scope, receive, send)
            else:
                await _pass_on(reply, receive, send)
            return
        await problem(503, "no worker process answers")(scope, receive, send)


async def _pass_on(reply: Reply, receive: Receive, send: Send) -> None:
    """Hand on what comes, until it ends or nobody listens any more: a stream may never end by itself."""
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
        while True:
            reading = asyncio.ensure_future(reply.body.read(65_536))
            await asyncio.wait([reading, gone], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
                return
            if not (part := reading.result()):
                break
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        gone.cancel()
        reply.writer.close()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _ask(path: Path, scope: Scope, body: bytes) -> Reply:
    """The same request, to the process that listens there. HTTP/1.0: the answer ends with the connection."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    query = scope["query_string"]
    target = scope["raw_path"] + (b"?" + query if query else b"")
    lines = [scope["method"].encode() + b" " + target + b" HTTP/1.0"]
    lines += [name + b": " + value for name, value in scope["headers"] if name not in _HOPS]
    writer.write(b"\r\n".join([*lines, b"content-length: %d" % len(body), b"", b""]) + body)
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        writer.close()
        raise ValueError("not an answer of HTTP") from error
    except BaseException:
        writer.close()
        raise
    pairs = (line.partition(b":") for line in head[1:] if line)
    headers = [(name.lower(), value.strip()) for name, _, value in pairs]
    return Reply(int(head[0].split()[1]), [one for one in headers if one[0] not in _HOPS], reader, writer)


def _problems(body: bytes) -> list[str]:
    try:
        found = msgspec.json.decode(body).get("problems")
    except (msgspec.DecodeError, AttributeError):
        found = None
    return [str(one) for one in found] if isinstance(found, list) and found else ["it is not well"]


def _add(families: dict[str, Metric], more: Iterable[Metric]) -> None:
    """Add the samples of one process to those of others. ``build_info`` stays 1, and of instants the latest counts."""
    for family in more:
        known = families.get(family.name)
        if known is None:
            families[family.name] = family
        elif not family.name.endswith("build_info"):
            values = {(one.name, frozenset(one.labels.items())): one for one in known.samples}
            for sample in family.samples:
                name = sample.name, frozenset(sample.labels.items())
                before = values.get(name)
                if before is not None:
                    latest = family.name.endswith("_timestamp_seconds")
                    value = max(before.value, sample.value) if latest else before.value + sample.value
                    sample = before._replace(value=value)
                values[name] = sample
            known.samples = list(values.values())


@asynccontextmanager
async def gathered(settings: HttpSettings, count: int) -> AsyncIterator[list[Path]]:
    """Serve for ``count`` processes, for as long as the block lasts. Yields the sockets that they are to listen at."""
    address, listening = listen(settings, protected=settings.tokens is not None)
    with tempfile.TemporaryDirectory(prefix="headrace-") as directory:
        sockets = [Path(directory, f"{number}.sock") for number in range(1, count + 1)]
        serving = server(Gatherer(sockets))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(serving.serve([listening]), name="headrace-http")
            log.info("http://%s: health, metrics, the admin API and the dashboard of %d processes", address, count)
            try:
                yield sockets
            finally:
                serving.should_exit = True
                await task
                listening.close()
