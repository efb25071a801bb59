"""Webhooks of three teams, a receiver that is not always well, and what becomes of them: all on this machine.

python examples/webhooks/run.py
"""

from __future__ import annotations

import asyncio
from asyncio import StreamWriter
from collections.abc import Sequence
from ipaddress import ip_network

import webhooks
from fetcher import Fetcher, Rules
from receiver import Receiver, Seen, response
from webhooks import QUEUE, app, send, set_rules, webhook

from headrace import Handle, JobInfo, JobState
from headrace.errors import JobFailed

FLOOD = 200
DEPTH = 50
"""The example's own, so that 200 webhooks are a flood already."""
PATIENCE = 60.0


async def resolve(host: str, port: int) -> Sequence[str]:
    """Names that exist only here. One of them belongs to somebody who wants to see your cloud's secrets."""
    return {"hooks.example": ["127.0.0.1"], "evil.example": ["169.254.169.254"]}[host]


async def respond(seen: Seen, writer: StreamWriter) -> None:
    """What the receiver says to each of the paths."""
    tries = sum(other.headers["webhook-id"] == seen.headers["webhook-id"] for other in receiver.seen)
    if seen.target == "/busy" and tries < 3:
        writer.write(response(429, {"retry-after": "1"}, b"one at a time, please"))
    elif seen.target == "/gone":
        writer.write(response(410, body=b"we no longer listen"))
    elif seen.target == "/moved":
        writer.write(response(308, {"location": f"http://evil.example:{receiver.port}/latest/meta-data/"}))
    else:
        writer.write(response(204))


receiver = Receiver(respond)


async def deliver_all() -> None:
    """Enqueue, work, and tell."""
    here = f"http://hooks.example:{receiver.port}"
    acme = [webhook("acme", f"{here}/{path}", b'{"paid": 7}') for path in ("fine", "busy", "gone", "moved")]
    acme.append(webhook("acme", f"http://evil.example:{receiver.port}/", b'{"paid": 7}'))
    flood = [webhook("flood", f"{here}/fine", b"{}") for _ in range(FLOOD)]
    bolt = [webhook("bolt", f"{here}/fine", b'{"sent": 9}') for _ in range(3)]
    handles = await send(*acme)
    flooded = await send(*flood)
    late = await send(*bolt)  # after the flood
    queues = [(await handle.info()).queue for handle in flooded]
    work = asyncio.ensure_future(app.work())
    try:
        told = [await ended(handle) for handle in handles]
        for handle in [*flooded, *late]:
            await ended(handle)
    finally:
        app.stop()
        await work
    for info in told:
        print(f"  {info.args['url'].replace(f':{receiver.port}', ''):46} {outcome(info)}")
    print(f"  of {FLOOD} webhooks of one team, {queues.count(QUEUE)} fit into the queue, the others took the overflow")
    ids = {str(handle.id) for handle in late}
    last = max(turn for turn, seen in enumerate(receiver.seen, 1) if seen.headers["webhook-id"] in ids)
    held_up = last > FLOOD
    print(f"  {len(late)} of another team came after them and were {'held up' if held_up else 'not held up'}")


async def ended(handle: Handle[object]) -> JobInfo:
    """The job once it has ended, well or not."""
    try:
        await handle.result(PATIENCE)
    except JobFailed:
        pass
    return await handle.info()


def outcome(info: JobInfo) -> str:
    """One line."""
    if info.state is JobState.COMPLETED:
        return f"delivered: status {info.result['status']} at try {info.result['tries']}"
    return f"{info.state}: {info.failures[-1].message.replace(f':{receiver.port}', '')}"


async def main() -> None:
    """The whole example. Only here may the fetcher reach this machine."""
    async with receiver, app:
        rules = Rules(ports=frozenset({receiver.port}), allowed=[ip_network("127.0.0.1/32")])
        webhooks.fetcher = Fetcher(rules, resolver=resolve)
        await set_rules()
        await app.policies.set(QUEUE, depth=DEPTH)
        await deliver_all()


if __name__ == "__main__":
    asyncio.run(main())
