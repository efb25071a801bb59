"""A Valkey cluster keeps the contract: the conformance suite and the state machine, on three real primaries."""

from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from headrace.backends.redis import ClusterBackend
from headrace.records import Claim, Settlement
from headrace.testing.conformance import BackendConformance
from headrace.testing.machine import BackendMachine, draws, machine_for, run_machine
from headrace.types import JobState
from tests.valkey_cluster import stores


class TestRedisCluster(BackendConformance):
    capabilities = ("durable", "hints", "turn")

    def connect(self, place: Path) -> ClusterBackend:
        return stores.connect(place)


class _OneByOne(BackendMachine):
    """Settlements of one batch that concern several shards have no order among them, and whichever comes first gets a
    key that two of them want; so here each comes alone."""

    def settle(self, batch: list[Settlement]) -> list[JobState | None]:
        states: list[JobState | None] = []
        for settlement in batch:
            states += super().settle([settlement])
        return states

    @rule(batch=st.lists(draws.settlements(), max_size=1), req=draws.claims(), after=draws.pauses)
    def turn(self, batch: list[Settlement], req: Claim, after: int) -> None:
        super().turn(batch, req, after)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(8))
def test_the_state_machine(seed: int, tmp_path: Path) -> None:
    machine = machine_for(stores.connect, durable=True, root=tmp_path)
    run_machine(type("OneByOne", (_OneByOne, machine), {"__module__": __name__}), seed=seed, examples=20)
