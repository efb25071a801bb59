"""A bounded run of the scenario with tenants; ``make chaos`` runs the full one."""

from pathlib import Path
from typing import Any

import pytest
from chaos.stores import STORES

from chaos import kill_holders

SMALL: dict[str, Any] = {"tenants": 50, "processes": 3, "seed": 7, "lease": 1.5, "budget": 200}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", STORES)
async def test_killed_holders_keep_their_tenants_until_their_leases_run_out(store: str, tmp_path: Path) -> None:
    outcome = await kill_holders.run(tmp_path, backend=store, jobs=1_200, kills=4, **SMALL)
    assert outcome.ok, outcome.show()
    assert outcome.reached["kills"] == 4


@pytest.mark.timeout(900)
async def test_it_is_seen_when_nobody_holds_tenants_back(tmp_path: Path) -> None:
    none: dict[str, Any] = {"rules": {"running": 500}}
    outcome = await kill_holders.run(tmp_path, backend="sqlite", jobs=600, kills=1, **SMALL, **none)
    assert not outcome.ok
    assert outcome.reached["token overlaps"] > 0
    assert outcome.reached["most running of the heavy tenant"] > kill_holders.HEAVY_LIMIT
