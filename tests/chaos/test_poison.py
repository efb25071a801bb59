"""A bounded run of the poison scenario; ``make chaos`` runs the full one."""

from pathlib import Path

import pytest
from chaos.stores import STORES

from chaos import poison


@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", STORES)
async def test_jobs_that_kill_their_worker_are_set_aside_and_no_other(store: str, tmp_path: Path) -> None:
    """C09: blame falls on the killer alone, and a payload that cannot be read kills nobody."""
    outcome = await poison.run(
        tmp_path, jobs=500, killers=2, processes=2, seed=11, backend=store, lease=4.0, budget=200
    )
    assert outcome.ok, outcome.show()
