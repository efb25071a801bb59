"""Valkey keeps the contract: the conformance suite and the state machine, on a real server."""

from pathlib import Path

import pytest

from headrace.backends.redis import RedisBackend
from headrace.testing.conformance import BackendConformance
from headrace.testing.machine import machine_for, run_machine
from tests.valkey import stores


class TestRedis(BackendConformance):
    capabilities = (
        "durable", "hints", "policies", "store_depth", "ticks", "references", "documents", "archive", "tracks",
        "finish_and_claim", "events", "journal", "parts", "usage", "transfers", "strict_order", "weighs_wanted",
    )  # fmt: skip

    def connect(self, place: Path) -> RedisBackend:
        return stores.connect(place)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(8))
def test_the_state_machine(seed: int, tmp_path: Path) -> None:
    run_machine(machine_for(stores.connect, durable=True, root=tmp_path), seed=seed, examples=20)
