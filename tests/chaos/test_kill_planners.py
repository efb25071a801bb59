"""A bounded run of the scenario with schedules; ``make chaos`` runs the full one."""

from pathlib import Path

import pytest
from chaos.stores import STORES

from chaos import kill_planners


@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", STORES)
async def test_killed_planners_leave_no_slot_out_and_fire_none_twice(store: str, tmp_path: Path) -> None:
    """C26: SIGKILL of workers that plan schedules. How late they are is for the full run on a quiet machine."""
    outcome = await kill_planners.run(
        tmp_path,
        schedules=100,
        interval=4.0,
        seconds=8.0,
        pause=1.5,
        lead=6.0,
        ahead=3.0,
        processes=3,
        seed=7,
        backend=store,
        late_by=60.0,
    )
    assert outcome.ok, outcome.show()
