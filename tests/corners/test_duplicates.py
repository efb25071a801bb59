"""Corner cases of dedup: who wins, what the winner decides, and when an id is free again."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections import Counter
from pathlib import Path

import pytest

from headrace import Duplicate, Job, Queued, immediate, never
from headrace.core.clock import ManualClock
from headrace.errors import JobFailed
from tests.facades.harness import Store, serving, within


async def test_of_many_at_once_one_is_accepted_and_the_others_are_answered(store: Store) -> None:
    """P20: there is nothing yet that could be locked, and all the same no error reaches anybody."""
    queues = [store.queue() for _ in range(6)]
    for name in ("a", "b", "c"):
        answers = await asyncio.gather(*(queue.enqueue(name, 1) for queue in queues * 5))
        assert Counter(answer.status for answer in answers) == {"queued": 1, "duplicate": 29}
    assert await store.count() == 3


@pytest.mark.parametrize("store", ["sqlite", "postgres", "valkey"], indirect=True)
async def test_among_processes_too(store: Store, tmp_path: Path) -> None:
    """P26: no process counts or looks by itself; what was acknowledged is run, once, whoever enqueued it."""
    store.backend()
    program = """
import asyncio, sys
from headrace import Queue
async def main():
    queue = Queue[int, int]("jobs", sys.argv[1])
    await queue.start()
    sys.stdin.readline()
    answers = [await queue.enqueue(f"job-{n}", n) for n in range(40)]
    await queue.stop()
    print(" ".join(str(n) for n, answer in enumerate(answers) if answer.status == "queued"))
asyncio.run(main())
"""
    command, pipe = (sys.executable, "-c", program, store.url), asyncio.subprocess.PIPE
    start = functools.partial(asyncio.create_subprocess_exec, *command, cwd=tmp_path, stdin=pipe, stdout=pipe)
    processes = [await start() for _ in range(3)]
    said = await within(asyncio.gather(*(process.communicate(b"go\n") for process in processes)), 30)
    accepted = Counter(int(number) for out, _ in said for number in out.split())
    assert accepted == Counter(range(40))
    queue = store.queue()
    ran: list[int] = []

    @queue.execute
    async def note(job: Job[int]) -> None:
        ran.append(job.payload)

    await within(queue.work(burst=True))
    assert sorted(ran) == list(range(40))


async def test_a_failed_id_runs_again_unless_one_asks_for_its_failure(store: Store) -> None:
    """P27: what the design says, and what others' tests say, as the caller likes."""
    queue = store.queue(retry=never())

    @queue.execute
    async def positive(job: Job[int]) -> int:
        if job.payload < 0:
            raise ValueError("negative")
        return job.payload

    async with serving(queue):
        with pytest.raises(JobFailed):
            await within(queue.enqueue_and_wait("a", -1))
        assert await queue.enqueue("a", 1, on_failed="return") == Duplicate("failed", 1)
        assert await within(queue.enqueue_and_wait("a", 2)) == 2


async def test_the_first_accepted_enqueue_decides(store: Store) -> None:
    """P28: payload, attempts and the result's time of a duplicate are dropped."""
    clock = ManualClock()
    queue = store.queue(clock=clock, retry=immediate(9))
    ran: list[int] = []

    @queue.execute
    async def last_chance(job: Job[int]) -> int:
        ran.append(job.payload)
        if not job.attempt:
            raise ValueError("not yet")
        return job.payload

    assert await queue.enqueue("a", 1, max_attempts=2, result_ttl="1m") == Queued()
    assert await queue.enqueue("a", 2, max_attempts=1, result_ttl="1h") == Duplicate("queued", 0)
    async with serving(queue):
        assert await within(queue.enqueue_and_wait("a", 3, max_attempts=1, result_ttl="1h")) == 1
    assert ran == [1, 1]
    clock.advance("2m")
    assert await queue.result("a") is None
