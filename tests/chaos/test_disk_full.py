"""A bounded run of the scenario in which a store gets full; ``make chaos`` runs it on volumes of their own."""

from pathlib import Path

import pytest

from chaos import disk_full


@pytest.mark.timeout(600)
async def test_nothing_is_lost_on_a_server_without_memory_and_work_goes_on_once_it_has_some(tmp_path: Path) -> None:
    """C20: to the last byte, under load. The only store that needs no volume of its own for it. Refused before: that
    takes a store which is larger than what is enqueued between two looks at the budget."""
    outcome = await disk_full.run(tmp_path, seed=3, backend="valkey", way="none", processes=1, full_for=1.0)
    assert outcome.ok, outcome.show()
