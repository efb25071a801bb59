"""A referee watches queues with policies on every store that has them; and the referee sees what is wrong."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from headrace.backends.memory import MemoryBackend
from headrace.seam.protocol import Backend
from headrace.testing.conformance import BackendConformance
from headrace.testing.machine.seeds import same_everywhere
from headrace.testing.referee.stories import Story, play, stories
from tests.backends import test_postgres, test_redis, test_redis_cluster, test_sqlite
from tests.backends.planted_rules import RULE_BREAKERS

SUITES: list[type[BackendConformance]] = [
    suite
    for suite in (
        test_sqlite.TestSqlite,
        test_postgres.TestPostgres,
        test_redis.TestRedis,
        test_redis_cluster.TestRedisCluster,
    )
    if "policies" in suite.capabilities
]
"""Those who have policies."""


def watch(store: Backend, rounds: range, examples: int = 25) -> None:
    """Play stories on one store, each in a queue of its own: a few from each of several seeds, as Hypothesis varies
    what it drew before."""
    queues = count()

    @settings(
        max_examples=examples,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(stories())
    def check(story: Story) -> None:
        queue = next(queues)
        runner.run(play(story, store, f"q{queue}", 10_000 * queue))

    with asyncio.Runner() as runner, same_everywhere():
        runner.run(store.open())
        try:
            for number in rounds:
                seed(number)(check)()
        finally:
            runner.run(store.close())


@pytest.mark.parametrize("first", range(0, 32, 8))
def test_memory_keeps_the_laws(first: int) -> None:
    watch(MemoryBackend(), range(first, first + 8))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("suite", SUITES)
def test_so_does_every_other_store(suite: type[BackendConformance], tmp_path: Path) -> None:
    watch(suite().connect(tmp_path), range(4), 10)


@pytest.mark.parametrize("faulty", RULE_BREAKERS)
def test_a_store_that_breaks_a_rule_is_found_out(faulty: type[MemoryBackend]) -> None:
    with pytest.raises(AssertionError):
        watch(faulty(), range(40))
