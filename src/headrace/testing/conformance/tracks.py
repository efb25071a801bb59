"""tracks: the sheets of trackers, by the points that they reach over and by when they must be looked at."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.seam.protocol import Backend
from headrace.seam.tracks import POINTS, SHEET_BYTES, Check, Erase, Sheet, Tally, TrackStore, Write
from headrace.testing.conformance.base import HOSTILE, HOUR, MINUTE, T0, ConformanceBase, needs


def sheet(low: int, version: int = 1, **changes: Any) -> Sheet:
    """A sheet that is due in an hour."""
    given: dict[str, Any] = {"tier": "hourly", "due_at": T0 + HOUR, "subjects": 2, "content": b"a\0b\xff"}
    return Sheet(low=low, version=version, **(given | changes))


class TrackTests(ConformanceBase):
    def tracks(self, store: Backend) -> TrackStore:
        """The capability, in tests that need it."""
        assert store.tracks is not None
        return store.tracks

    async def add(self, store: Backend, *sheets: Sheet, tracker: str = "t") -> None:
        """Sheets that must all be new."""
        assert await self.tracks(store).write(tracker, [Write(one, 0) for one in sheets], T0)

    async def all(self, store: Backend, tier: str = "hourly", tracker: str = "t") -> list[Sheet]:
        """All sheets of a tier."""
        return (await self.tracks(store).walk(tracker, tier, 0, 1_000, T0)).sheets

    @needs("tracks")
    async def test_a_point_lies_on_the_sheet_that_reaches_over_it(self, store: Backend) -> None:
        sheets = [sheet(low) for low in (0, 10, POINTS - 1)]
        daily = sheet(5, 7, tier="daily", run=3, ran_at=T0, subjects=0, content=b"")
        await self.add(store, *sheets, daily)
        tracks = self.tracks(store)
        for point, found in (
            (0, sheets[0]),
            (9, sheets[0]),
            (10, sheets[1]),
            (POINTS - 2, sheets[1]),
            (POINTS - 1, sheets[2]),
        ):
            answer = await tracks.read("t", [("hourly", point)], T0)
            assert (answer.now, answer.sheets) == (T0, [found])
        assert (await tracks.read("t", [("daily", 4)], T0)).sheets == []
        assert (await tracks.read("t", [("weekly", 4)], T0)).sheets == []
        assert (await tracks.read("other", [("hourly", 4)], T0)).sheets == []
        everything = [("hourly", 11), ("daily", 5), ("hourly", 3), ("hourly", 10), ("daily", 6), ("weekly", 1)]
        assert (await tracks.read("t", everything, T0)).sheets == [daily, sheets[0], sheets[1]]
        assert (await tracks.read("t", [], T0)).now == T0

    @needs("tracks")
    async def test_a_walk_meets_the_sheets_of_a_tier_in_order(self, store: Backend) -> None:
        await self.add(store, *[sheet(low) for low in (30, 0, 10, 20)], sheet(15, tier="daily"))
        tracks = self.tracks(store)
        assert [one.low for one in (await tracks.walk("t", "hourly", 0, 3, T0)).sheets] == [0, 10, 20]
        assert [one.low for one in (await tracks.walk("t", "hourly", 21, 3, T0)).sheets] == [30]
        assert (await tracks.walk("t", "hourly", 31, 3, T0)).sheets == []

    @needs("tracks")
    async def test_sheets_are_written_all_or_none(self, store: Backend) -> None:
        await self.add(store, sheet(0), sheet(10))
        tracks = self.tracks(store)
        new = sheet(0, 5, run=1, ran_at=T0, content=b"new", subjects=1)
        spoilt: Write | Check | Erase
        for spoilt in (
            Write(sheet(10, 9), 2),
            Write(sheet(10, 9), 0),
            Write(sheet(20, 9), 1),
            Check("hourly", 10, 2),
            Check("hourly", 10, 0),
            Check("hourly", 20, 1),
            Erase("hourly", 10, 2),
            Erase("hourly", 20, 1),
        ):
            batch: list[Write | Check | Erase] = [Write(new, 1), spoilt, Write(sheet(40), 0)]
            assert not await tracks.write("t", batch, T0)
            assert await self.all(store) == [sheet(0), sheet(10)]
        good: list[Write | Check | Erase] = [
            Write(new, 1),
            Erase("hourly", 10, 1),
            Write(sheet(40), 0),
            Check("hourly", 20, 0),
            Check("daily", 0, 0),
        ]
        assert await tracks.write("t", good, T0)
        assert await self.all(store) == [new, sheet(40)]
        assert [one.low for one in (await tracks.read("t", [("hourly", 15)], T0)).sheets] == [0]
        assert not await tracks.write("t", good, T0)
        assert await tracks.write("t", [], T0)

    @needs("tracks")
    async def test_of_two_writers_one_succeeds(self, store: Backend) -> None:
        await self.add(store, sheet(0))
        tracks = self.tracks(store)
        for expect in range(1, 6):
            done = await asyncio.gather(
                *[tracks.write("t", [Write(sheet(0, expect + 1, subjects=n), expect)], T0) for n in range(4)]
            )
            assert sorted(done) == [False, False, False, True]
        made = await asyncio.gather(*[tracks.write("t", [Write(sheet(7, 1, subjects=n), 0)], T0) for n in range(4)])
        assert sorted(made) == [False, False, False, True]

    @needs("tracks")
    async def test_two_batches_that_check_what_the_other_writes_are_not_both_done(self, store: Backend) -> None:
        tracks = self.tracks(store)
        for low in range(20):
            one: list[Write | Check | Erase] = [Write(sheet(low, tier="a"), 0), Check("b", low, 0)]
            other: list[Write | Check | Erase] = [Check("a", low, 0), Write(sheet(low, tier="b"), 0)]
            done = await asyncio.gather(tracks.write("t", one, T0), tracks.write("t", other, T0))
            assert sorted(done) == [False, True]

    @needs("tracks")
    async def test_what_is_due_is_given_out_once_until_it_was_held_long_enough(self, store: Backend) -> None:
        await self.add(
            store, sheet(0, due_at=T0 + 2), sheet(10, due_at=T0 + 1), sheet(20, due_at=T0 + HOUR), tracker="t"
        )
        await self.add(store, sheet(0, due_at=T0 + 1), tracker="u")
        tracks = self.tracks(store)
        early = await tracks.due("t", 10, MINUTE, T0)
        assert (early.now, early.sheets, early.next_in) == (T0, [], 1)
        first = await tracks.due("t", 1, MINUTE, T0 + 2)
        assert ([one.low for one in first.sheets], first.next_in) == ([10], None)
        assert first.sheets[0] == sheet(10, due_at=T0 + 1, content=b"")
        second = await tracks.due("t", 10, MINUTE, T0 + 3)
        assert ([one.low for one in second.sheets], second.next_in) == ([0], MINUTE - 1)
        assert (await tracks.due("t", 10, MINUTE, T0 + MINUTE)).sheets == []
        again = await tracks.due("t", 10, MINUTE, T0 + MINUTE + 3)
        assert [one.low for one in again.sheets] == [10, 0]
        assert [one.version for one in await self.all(store)] == [1, 1, 1]
        assert (await tracks.due("nobody", 10, MINUTE, T0)).next_in is None

    @needs("tracks")
    async def test_what_was_written_is_looked_at_when_it_is_due(self, store: Backend) -> None:
        await self.add(store, sheet(0, due_at=T0), sheet(10, due_at=T0))
        tracks = self.tracks(store)
        assert len((await tracks.due("t", 10, HOUR, T0)).sheets) == 2
        assert await tracks.write("t", [Write(sheet(0, 2, due_at=T0 + MINUTE), 1), Erase("hourly", 10, 1)], T0)
        assert (await tracks.due("t", 10, HOUR, T0)).next_in == MINUTE
        assert [one.version for one in (await tracks.due("t", 10, HOUR, T0 + MINUTE)).sheets] == [2]

    @needs("tracks")
    async def test_planners_at_once_share_what_is_due(self, store: Backend) -> None:
        await self.add(store, *[sheet(low, due_at=T0) for low in range(200)])
        answers = await asyncio.gather(*[self.tracks(store).due("t", 60, HOUR, T0) for _ in range(8)])
        lows = [one.low for answer in answers for one in answer.sheets]
        assert len(lows) == len({*lows})
        while more := (await self.tracks(store).due("t", 60, HOUR, T0)).sheets:
            lows += [one.low for one in more]
        assert sorted(lows) == [*range(200)]

    @needs("tracks")
    async def test_tallies(self, store: Backend) -> None:
        tracks = self.tracks(store)
        assert await tracks.tally() == []
        await self.add(store, sheet(0), sheet(10), sheet(0, tier="daily", subjects=5, content=b"12345"))
        await self.add(store, sheet(0), tracker="s")
        hourly = Tally("t", "hourly", 2, 4, 8)
        assert await tracks.tally() == [Tally("s", "hourly", 1, 2, 4), Tally("t", "daily", 1, 5, 5), hourly]
        assert await tracks.tally("t") == [Tally("t", "daily", 1, 5, 5), hourly]
        assert await tracks.write(
            "t", [Write(sheet(0, 2, subjects=1, content=b"x"), 1), Erase("daily", 0, 1), Erase("hourly", 10, 1)], T0
        )
        assert await tracks.tally("t") == [Tally("t", "hourly", 1, 1, 1)]

    @needs("tracks")
    async def test_names_of_trackers_and_tiers_are_data(self, store: Backend) -> None:
        tracks = self.tracks(store)
        for number, name in enumerate(HOSTILE):
            await self.add(store, sheet(number, tier=name, due_at=T0), sheet(number, tier=f"{number}:"), tracker=name)
        for number, name in enumerate(HOSTILE):
            [found] = (await tracks.read(name, [(name, POINTS - 1)], T0)).sheets
            assert (found.tier, found.low) == (name, number)
            assert [(one.tier, one.low) for one in (await tracks.due(name, 10, HOUR, T0)).sheets] == [(name, number)]
            assert {one.tier for one in await tracks.tally(name)} == {name, f"{number}:"}
        assert {one.tracker for one in await tracks.tally()} == {*HOSTILE}

    @needs("tracks")
    async def test_large_batches_and_sheets(self, store: Backend) -> None:
        many = [sheet(low * 1_000, tier=tier) for low in range(300) for tier in ("a", "b")]
        await self.add(store, *many)
        points = [(tier, low * 1_000 + 999) for low in range(300) for tier in ("b", "a")]
        found = (await self.tracks(store).read("t", points, T0)).sheets
        assert found == sorted(many, key=lambda one: (one.tier, one.low))
        await self.add(store, large := sheet(0, content=bytes(range(256)) * (SHEET_BYTES // 256)), tracker="large")
        assert await self.all(store, tracker="large") == [large]

    @needs("tracks", "durable")
    async def test_sheets_outlive_the_process(self, store: Backend) -> None:
        await self.add(store, sheet(0))
        other = store.sibling()
        await other.open()
        try:
            assert await self.all(other) == [sheet(0)]
        finally:
            await other.close()
