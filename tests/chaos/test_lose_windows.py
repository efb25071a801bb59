"""A bounded run of the scenario in which windows are lost; ``make chaos`` runs the full one."""

from pathlib import Path

import pytest

from chaos import lose_windows


@pytest.mark.timeout(900)
async def test_nothing_is_lost_with_the_windows(tmp_path: Path) -> None:
    outcome = await lose_windows.run(tmp_path, rounds=1, processes=2, seed=7, away=5.0, rate=100, pause=1.0, budget=300)
    assert outcome.ok, outcome.show()
    assert outcome.reached["kill worker"] == 5
