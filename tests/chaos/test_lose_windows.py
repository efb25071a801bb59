"""A bounded run of the scenario in which windows are lost; ``make chaos`` runs the full one."""

from pathlib import Path

import pytest

from chaos import lose_windows


@pytest.mark.timeout(900)
async def test_nothing_is_lost_with_the_windows(tmp_path: Path) -> None:
    outcome = await lose_windows.run(tmp_path, rounds=1, processes=2, seed=7, away=5.0, rate=100, pause=1.0, budget=300)
    assert outcome.ok, outcome.show()
    assert outcome.reached["kill worker"] == 5


@pytest.mark.parametrize(
    ("what", "number", "problem"),
    [
        ("kill postgres", 9, "kill postgres: expected 10 times, got 9"),
        ("objects away", 0, "objects away: expected 1 times, got 0"),
        (lose_windows.OPEN_SHARE, 0.02, "the window was open in 2% of looks"),
        ("consumers in the end", 11, "11 consumers stayed"),
    ],
)
def test_a_run_without_its_troubles_or_windows_shows_nothing(what: str, number: float, problem: str) -> None:
    good = {"integrity": "ok", "drained": True, "enqueues refused": 0, "consumers in the end": 3}
    good |= {**lose_windows.times(10), "objects away": 1, lose_windows.OPEN_SHARE: 0.5}
    assert lose_windows.said(good, 10) == []
    assert lose_windows.said(good | {what: number}, 10) == [problem]
