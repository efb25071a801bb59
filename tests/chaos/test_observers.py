"""A bounded run of the scenario that compares what is told with the truth; ``make chaos`` runs the full one."""

from pathlib import Path

import pytest

from chaos import observers


@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", ["postgres", "valkey"])
async def test_health_metrics_and_pages_tell_the_truth(store: str, tmp_path: Path) -> None:
    """On a machine that is busy with other tests, they may take their time."""
    outcome = await observers.run(tmp_path, seed=5, backend=store, rounds=1, slowest=60.0)
    assert outcome.ok, outcome.show()
