"""A bounded run of the scenario in which the server is killed; ``make chaos`` runs the full one."""

from pathlib import Path

import pytest
from chaos.stores import SERVERS

from chaos import kill_server


@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", SERVERS)
async def test_workers_and_producers_find_back_to_a_server_that_was_killed(store: str, tmp_path: Path) -> None:
    """C03: SIGKILL of every process of the server under load; nobody else is started again."""
    outcome = await kill_server.run(
        tmp_path, kills=2, processes=2, seed=3, backend=store, rate=300, lease=1.0, recovered=12.0, budget=200
    )
    assert outcome.ok, outcome.show()
