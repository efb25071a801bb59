"""A bounded run of the scenario in which workers stand still; ``make chaos`` runs the full one."""

from pathlib import Path

import pytest
from chaos.stores import SERVERS

from chaos import freeze_workers


@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", SERVERS)
async def test_a_worker_that_stood_still_past_its_leases_changes_nothing_and_is_told(
    store: str, tmp_path: Path
) -> None:
    """C06: SIGSTOP for two to four leases, then SIGCONT."""
    outcome = await freeze_workers.run(tmp_path, freezes=1, processes=2, seed=13, backend=store, lease=1.0, budget=200)
    assert outcome.ok, outcome.show()
