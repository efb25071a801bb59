"""Bounded runs of the scenarios with an object store; ``make chaos`` runs the full ones."""

from pathlib import Path

import pytest

from chaos import crash_objects, objects_away


@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", ["sqlite", "streams"])
async def test_processes_die_at_every_step(store: str, tmp_path: Path) -> None:
    outcome = await crash_objects.run(tmp_path, crashes=2, seed=1, backend=store)
    assert outcome.ok, outcome.show()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", ["sqlite", "streams"])
async def test_the_object_store_goes_away_under_load(store: str, tmp_path: Path) -> None:
    outcome = await objects_away.run(tmp_path, away=6.0, seed=1, rate=20, backend=store)
    assert outcome.ok, outcome.show()


def test_enqueueing_that_is_held_up_is_no_success() -> None:
    assert objects_away.too_few(2_730, 100, 61.0)
    assert not objects_away.too_few(5_390, 100, 61.0)
