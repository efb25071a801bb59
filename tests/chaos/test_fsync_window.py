"""A bounded run of the scenario in which the power goes; ``make chaos`` runs the full one."""

from pathlib import Path

import pytest

from chaos import fsync_window


@pytest.mark.timeout(900)
async def test_a_power_cut_takes_what_was_not_synced_yet_and_nothing_else(tmp_path: Path) -> None:
    """C04: a server that syncs once a second; once cut at its last sync, once somewhere behind it."""
    outcome = await fsync_window.run(tmp_path, cuts=2, processes=2, seed=3, rate=300, lease=1.0, budget=200)
    assert outcome.ok, outcome.show()
