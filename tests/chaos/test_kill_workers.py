"""A bounded run of the kill scenario; ``make chaos`` runs the full one."""

from pathlib import Path

import pytest
from chaos.stores import STORES

from chaos import kill_workers


@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", STORES)
async def test_killed_workers_lose_nothing_and_stale_ones_change_nothing(store: str, tmp_path: Path) -> None:
    """C01, C35: SIGKILL of random workers under load."""
    outcome = await kill_workers.run(tmp_path, jobs=3_000, kills=8, processes=3, seed=7, backend=store, budget=200)
    assert outcome.ok, outcome.show()
