"""Which children are started again."""

from __future__ import annotations

import pytest

from headrace.cli import supervisor
from headrace.cli.problems import OK, UNAVAILABLE, USAGE
from headrace.cli.supervisor import Supervisor


class Scripted(Supervisor):
    """Children that end at once, with these codes."""

    def __init__(self, *codes: int) -> None:
        super().__init__([[]])
        self.codes = list(codes)

    async def _run_child(self, place: int) -> int:
        return self.codes.pop(0)

    async def _pause(self, seconds: float) -> None:
        return


async def test_a_usage_error_from_the_start_only_comes_back() -> None:
    kept = Scripted(USAGE, OK)
    assert await kept.run() == USAGE
    assert kept.codes == [OK]


async def test_a_store_that_lets_nobody_in_is_tried_again() -> None:
    assert await Scripted(UNAVAILABLE, UNAVAILABLE, OK).run() == OK


async def test_who_has_worked_is_started_again_whatever_it_ends_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rights and settings are also changed by mistake, for a moment."""
    monkeypatch.setattr(supervisor, "_HEALTHY", -1.0)
    assert await Scripted(USAGE, USAGE, OK).run() == OK
