"""The sheets of one tracker, in memory."""

from __future__ import annotations

from bisect import bisect_right, insort

from headrace.seam.tracks import Sheet


class TrackerSheets:
    """The sheets of one tracker."""

    def __init__(self) -> None:
        self.sheets: dict[tuple[str, int], Sheet] = {}
        self.look_at: dict[tuple[str, int], int] = {}
        self.lows: dict[str, list[int]] = {}

    def put(self, sheet: Sheet) -> None:
        """In the place of what is there."""
        name = sheet.tier, sheet.low
        if name not in self.sheets:
            insort(self.lows.setdefault(sheet.tier, []), sheet.low)
        self.sheets[name] = sheet
        self.look_at[name] = sheet.due_at

    def remove(self, tier: str, low: int) -> None:
        """It is there."""
        del self.sheets[tier, low], self.look_at[tier, low]
        self.lows[tier].remove(low)

    def covering(self, tier: str, point: int) -> Sheet | None:
        """The sheet that the point lies on."""
        lows = self.lows.get(tier, [])
        index = bisect_right(lows, point)
        return self.sheets[tier, lows[index - 1]] if index else None
