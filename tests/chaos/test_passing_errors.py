"""A bounded run of the scenario with errors that pass; ``make chaos`` runs the full one."""

from pathlib import Path

import pytest

from chaos import passing_errors


@pytest.mark.timeout(900)
async def test_errors_that_pass_cost_no_work_and_end_no_worker(tmp_path: Path) -> None:
    """C12, C16: alone and under a supervisor."""
    outcome = await passing_errors.run(
        tmp_path, processes=1, seed=5, lasting=0.6, rate=100, lease=2.0, recovered=15.0, budget=200
    )
    assert outcome.ok, outcome.show()
