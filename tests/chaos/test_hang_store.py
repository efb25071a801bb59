"""Bounded runs of the scenario in which the store stands still; ``make chaos`` runs the full ones."""

from pathlib import Path

import pytest

from chaos import hang_store


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("store", "way"),
    [
        ("postgres", "stop"),
        ("postgres", "lock"),
        ("valkey", "pause"),
        ("sqlite", "lock"),
        ("streams", "stop valkey"),
        ("streams", "stop postgres"),
    ],
)
async def test_no_living_worker_loses_a_job_to_a_store_that_stands_still(store: str, way: str, tmp_path: Path) -> None:
    """Not for 1.4 leases, with long jobs under way and others that come."""
    outcome = await hang_store.run(
        tmp_path, hangs=1, leases=1.4, processes=2, seed=5, backend=store, way=way, lease=2.5, rate=50, budget=200
    )
    assert outcome.ok, outcome.show()
