"""PostgreSQL keeps the contract: the conformance suite and the state machine, on a real server."""

from pathlib import Path

import pytest

from headrace.backends.postgres import PostgresBackend
from headrace.testing.conformance import BackendConformance
from headrace.testing.machine import machine_for, run_machine
from tests.postgres import stores


class TestPostgres(BackendConformance):
    capabilities = (
        "durable", "hints", "ticks", "references", "documents", "archive", "tracks", "tables", "finish_and_claim",
        "policies", "store_depth", "events", "journal", "parts", "usage", "reserve", "transfers", "strict_order",
        "weighs_wanted",
    )  # fmt: skip

    def connect(self, place: Path) -> PostgresBackend:
        return stores.connect(place)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(6))
def test_the_state_machine(seed: int, tmp_path: Path) -> None:
    run_machine(machine_for(stores.connect, durable=True, root=tmp_path), seed=seed, examples=20)
