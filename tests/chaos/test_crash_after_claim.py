"""A bounded run of the scenario in which the server is killed after a hand-out; ``make chaos`` runs the full one."""

from pathlib import Path

import pytest
from chaos.stores import SERVERS

from chaos import crash_after_claim


@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", crash_after_claim.WAYS)
@pytest.mark.parametrize("store", [*SERVERS, "streams"])
async def test_what_was_handed_out_stays_so_when_the_server_crashes(store: str, way: str, tmp_path: Path) -> None:
    """No epoch is given out twice, nothing that may be started once is started twice, and groups keep their order."""
    outcome = await crash_after_claim.run(
        tmp_path, rounds=2, processes=2, seed=5, backend=store, way=way, lease=2.0, budget=200
    )
    assert outcome.ok, outcome.show()
    assert way in outcome.scenario  # or the results of one way would replace those of another
