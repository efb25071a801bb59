"""Server-sent events: what happens in all processes, as it happens."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.facades.harness import within


async def test_what_happens_is_streamed(site: Any) -> None:
    place = await site()
    send = place.app.tasks["send"]
    reader, writer = await asyncio.open_connection(place.address.host, place.address.port)
    writer.write(b"GET /api/v1/events HTTP/1.0\r\nHost: localhost\r\n\r\n")
    head = await within(reader.readuntil(b": listening\n\n"))
    assert b"200 OK" in head
    assert b"text/event-stream" in head
    counted: dict[str, int] = {}

    async def read() -> None:
        while counted.get("completed", 0) < 1 or counted.get("enqueued", 0) < 1:
            line = (await reader.readline()).decode()
            if line.startswith("data: "):
                for tally in json.loads(line[6:])["tallies"]:
                    assert (tally["queue"], tally["task"]) == ("mail", "send")
                    counted[tally["what"]] = counted.get(tally["what"], 0) + tally["count"]

    reading = asyncio.ensure_future(read())
    while not reading.done():
        await send.enqueue(1)
        await place.app.drain()
        await asyncio.wait([reading], timeout=0.2)
    await reading
    writer.close()
