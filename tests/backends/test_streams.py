"""PostgreSQL and Valkey together keep the contract: the conformance suite and the state machine, on real servers."""

from pathlib import Path

import pytest

from headrace.backends.streams import StreamsBackend
from headrace.testing.conformance import BackendConformance
from headrace.testing.machine import machine_for, run_machine
from tests.streams import stores


class TestStreams(BackendConformance):
    capabilities = (
        "durable", "hints", "ticks", "references", "documents", "archive", "tracks", "tables", "finish_and_claim",
        "policies", "store_depth", "events", "journal", "parts", "usage", "reserve",
        "transfers",
    )  # fmt: skip

    def connect(self, place: Path) -> StreamsBackend:
        return stores.connect(place)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(6))
def test_the_state_machine(seed: int, tmp_path: Path) -> None:
    machine = machine_for(stores.connect, durable=True, root=tmp_path, without=frozenset({"strict_order"}))
    run_machine(machine, seed=seed, examples=10)
