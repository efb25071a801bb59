"""A short run of the scenario in which a lock holds up the server; ``make chaos`` has one of half a minute."""

from pathlib import Path

import pytest

from chaos import impatient_callers


@pytest.mark.timeout(900)
async def test_callers_who_give_up_do_not_use_up_the_servers_connections(tmp_path: Path) -> None:
    outcome = await impatient_callers.run(tmp_path, processes=1, seed=1, seconds=4.0, lease=1.0)
    assert outcome.ok, outcome.show()
