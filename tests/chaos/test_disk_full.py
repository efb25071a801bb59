"""A bounded run of the scenario in which a store gets full; ``make chaos`` runs it on volumes of their own."""

from pathlib import Path

import pytest

from chaos import disk_full


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", disk_full.WAYS["valkey"])
async def test_nothing_is_lost_on_a_server_without_memory_and_work_goes_on_once_it_has_some(
    tmp_path: Path, way: disk_full.Way
) -> None:
    """C20: to the last byte, under load, or refused before. The only store that needs no volume of its own for it."""
    outcome = await disk_full.run(tmp_path, seed=3, backend="valkey", way=way, processes=1, full_for=1.0)
    assert outcome.ok, outcome.show()
