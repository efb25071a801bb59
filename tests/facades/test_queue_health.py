"""Whether a queue is served, in one answer."""

from __future__ import annotations

import asyncio

import pytest

from headrace import Client
from headrace.cyclotron import JobInit, Manager, Worker
from headrace.errors import ConfigError
from tests.cyclotron.conftest import client, make_client, store

__all__ = ["client", "make_client", "store"]


async def test_a_queue_is_well_while_somebody_takes_its_jobs(client: Client) -> None:
    await Manager(client).create_job(JobInit(team_id=1, queue_name="hog"))
    alone = await client.queue_health("hog", workers=0)
    assert (alone.ok, alone.workers, alone.due) == (False, 0, 1)
    assert alone.problems[0].startswith("queue hog has due jobs and no worker; the oldest has waited ")
    async with Worker(client, "hog") as worker:
        async with asyncio.timeout(240):
            while not (served := await client.queue_health("hog", max_age="1h")).workers:
                await asyncio.sleep(0.05)  # a worker is listed from its first beat on
        assert (served.ok, served.problems, served.workers) == (True, [], 1)
        late = await client.queue_health("hog", max_age=0)
        assert late.problems[0].startswith("the oldest due job of queue hog has waited ")
        few = await client.queue_health("hog", workers=2)
        assert few.problems == ["expected at least 2 workers of queue hog alive, found 1"]
        [job] = await worker.dequeue_jobs()
        assert (await client.queue_health("hog", max_age=0)).ok
        job.set_state("completed")
        await job.release()


async def test_a_queue_that_nobody_has_used_has_nothing_due(client: Client) -> None:
    assert (await client.queue_health("new", workers=0)).ok
    assert not (await client.queue_health("new")).ok
    with pytest.raises(ConfigError, match="workers"):
        await client.queue_health("new", workers=-1)
