"""Run the flow on a store: ``HEADRACE_URL``, or a SQLite file in the working directory."""

from __future__ import annotations

import asyncio
import os
import sys

import flow

from headrace.cyclotron import Janitor, JobInit, Manager, Worker

URL = os.environ.get("HEADRACE_URL", "sqlite:///cyclotron.db")


async def kill_a_worker() -> int:
    """Start a worker in another process, and kill it once it holds jobs; how many it held."""
    command = [sys.executable, __file__, "die"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    held = int(await process.stdout.readline())
    process.kill()
    await process.wait()
    return held


async def main() -> None:
    if sys.argv[1:] == ["die"]:
        async with Worker(URL, "stalls", heartbeat_timeout="2s") as worker:
            await flow.die(worker)
    async with (
        Manager(URL, depth_limit=100_000) as manager,
        Worker(URL, "hog") as hog,
        Worker(URL, "hogoverflow") as overflow,
        Worker(URL, "stalls", heartbeat_timeout="2s") as stalls,
        Janitor(URL, completed="10s", failed="10s", max_touches=1, interval="100ms", patience="5s") as janitor,
    ):
        await flow.create(manager, JobInit)
        await flow.work(hog, overflow)
        await flow.stall(manager, janitor, JobInit, kill_a_worker, stalls)
        await flow.poison(manager, janitor, JobInit, kill_a_worker, stalls)
        await flow.clean(manager, janitor, 1_006)


asyncio.run(main())
