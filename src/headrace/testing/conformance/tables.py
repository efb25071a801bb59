"""tables: tables of the user's own, and their old rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.seam.protocol import Backend
from headrace.seam.tables import ColumnKind, Cutoff, HotRule, TableStore
from headrace.testing.conformance.base import HOUR, T0, ConformanceBase, needs

DAY = 24 * HOUR
NAMES = ("hot", 'hot "%s" table', "горячо")
COLUMNS = {
    "id": ColumnKind.TEXT, "n": ColumnKind.INTEGER, "done": ColumnKind.BOOLEAN, 'odd "%b"': ColumnKind.JSON,
    "at": ColumnKind.TIME,
}  # fmt: skip


def moment(at: int) -> datetime:
    """The instant as users write it."""
    return datetime.fromtimestamp(at / 1e6, UTC)


class TableTests(ConformanceBase):
    def tables(self, store: Backend) -> TableStore:
        """The capability, in tests that need it."""
        assert store.tables is not None
        return store.tables

    async def fill(self, store: Backend, name: str, rows: Sequence[tuple[str, int, bool, int]]) -> HotRule:
        """A table with just these rows: id, n, done, and how old they are."""
        tables, rule = self.tables(store), HotRule(table=(name,), key=("id",), age="at")
        await tables.create((name,), COLUMNS, ["id"], "at")
        everything = await tables.oldest(rule, Cutoff(T0 + 1_000 * DAY), 10_000, values=False)
        await tables.delete(rule, Cutoff(T0 + 1_000 * DAY), everything)
        values = [(one, n, done, {"ü": [n]}, moment(T0 - age)) for one, n, done, age in rows]
        await tables.put((name,), [*COLUMNS], values, ["id"])
        return rule

    async def ids(self, store: Backend, rule: HotRule, cutoff: Cutoff) -> list[Any]:
        """The rows that are too old."""
        return [row.values["id"] for row in await self.tables(store).oldest(rule, cutoff, 100, values=True)]

    @needs("tables")
    async def test_a_table_is_described_as_it_is(self, store: Backend) -> None:
        tables = self.tables(store)
        assert await tables.describe(("there is none",)) is None
        for name in NAMES:
            await self.fill(store, name, [])
            info = await tables.describe((name,))
            assert info is not None
            assert (list(info.columns), info.key) == (list(COLUMNS), ("id",))

    @needs("tables")
    async def test_the_bytes_of_a_table_are_told(self, store: Backend) -> None:
        rule = await self.fill(store, NAMES[0], [("a", 1, True, 0)])
        assert await self.tables(store).size(rule.table) > 0
        assert await self.tables(store).size(("there is none",)) == 0

    @needs("tables")
    async def test_rows_are_replaced_by_their_key(self, store: Backend) -> None:
        rule = await self.fill(store, NAMES[1], [("a", 1, True, DAY), ("b", 2, True, DAY)])
        await self.tables(store).put(rule.table, ["id", "n"], [("b", 7), ("c", 8)], ["id"])
        found = await self.tables(store).oldest(rule, Cutoff(T0 + 1_000 * DAY), 10, values=True)
        assert {row.values["id"]: row.values["n"] for row in found} == {"a": 1, "b": 7, "c": 8}

    @needs("tables")
    async def test_an_update_brings_no_row_back(self, store: Backend) -> None:
        rule = await self.fill(store, NAMES[1], [("a", 1, True, DAY)])
        await self.tables(store).update(rule.table, ["n", "id"], [(7, "a"), (8, "gone")], ["id"])
        found = await self.tables(store).oldest(rule, Cutoff(T0 + 1_000 * DAY), 10, values=True)
        assert {row.values["id"]: row.values["n"] for row in found} == {"a": 7}

    @needs("tables")
    async def test_old_rows_come_oldest_first_and_can_be_deleted(self, store: Backend) -> None:
        rows = [(f"{days}", days, True, days * DAY) for days in (3, 9, 1, 8, 7)]
        rule = await self.fill(store, NAMES[0], rows)
        tables, cutoff = self.tables(store), Cutoff(T0 - 7 * DAY)
        old = await tables.oldest(rule, cutoff, 10, values=True)
        assert [(row.values["id"], row.age) for row in old] == [("9", T0 - 9 * DAY), ("8", T0 - 8 * DAY)]
        assert len(await tables.oldest(rule, cutoff, 1, values=False)) == 1
        assert await tables.delete(rule, cutoff, old[:1]) == 1
        assert await tables.delete(rule, cutoff, old) == 1
        assert await self.ids(store, rule, Cutoff(T0)) == ["7", "3", "1"]

    @needs("tables")
    async def test_a_row_that_has_changed_is_not_deleted(self, store: Backend) -> None:
        rule = await self.fill(store, NAMES[0], [("a", 1, True, 9 * DAY), ("b", 1, True, 9 * DAY)])
        tables, cutoff = self.tables(store), Cutoff(T0 - 7 * DAY)
        old = await tables.oldest(rule, cutoff, 10, values=True)
        await tables.put(rule.table, ["id", "n"], [("a", 2)], ["id"])
        assert await tables.delete(rule, cutoff, old) == 1
        assert await self.ids(store, rule, cutoff) == ["a"]

    @needs("tables")
    async def test_rows_that_are_not_processed_have_a_cutoff_of_their_own(self, store: Backend) -> None:
        rows = [(f"{days} {done}", days, done, days * DAY) for days in (1, 8, 30) for done in (True, False)]
        plain = await self.fill(store, NAMES[2], rows)
        rule = HotRule(table=plain.table, key=plain.key, age="at", processed="done")
        assert set(await self.ids(store, rule, Cutoff(T0 - 7 * DAY))) == {"8 True", "30 True"}
        both = Cutoff(T0 - 7 * DAY, T0 - 20 * DAY)
        assert set(await self.ids(store, rule, both)) == {"8 True", "30 True", "30 False"}
        survey = await self.tables(store).survey(rule, both, T0)
        assert (survey.rows, survey.condemned, survey.waiting, survey.newest) == (6, 3, 1, T0 - DAY)
        assert survey.ages == {1: 2, 8: 2, 30: 2}
        assert survey.bytes > 0

    @needs("tables")
    async def test_a_look_counts_what_a_sweep_deletes_and_no_more_than_it_must(self, store: Backend) -> None:
        rows = [(f"{days} {done}", days, done, days * DAY) for days in range(1, 30) for done in (True, False)]
        plain = await self.fill(store, NAMES[2], rows)
        tables = self.tables(store)
        rule = HotRule(table=plain.table, key=plain.key, age="at", processed="done")
        for given, cutoff in (
            (plain, Cutoff(T0 - 7 * DAY)), (rule, Cutoff(T0 - 7 * DAY)), (rule, Cutoff(T0 - 7 * DAY, T0 - 20 * DAY)),
            (rule, Cutoff(T0 - 7 * DAY, T0 - 7 * DAY)),
        ):  # fmt: skip
            look, survey = await tables.look(given, cutoff, 1_000), await tables.survey(given, cutoff, T0)
            assert (look.condemned, look.waiting, look.newest) == (survey.condemned, survey.waiting, survey.newest)
            assert len(await tables.oldest(given, cutoff, 1_000, values=False)) == look.condemned
        assert (await tables.look(plain, Cutoff(T0 - 7 * DAY), 5)).condemned == 5
        assert await tables.count(plain.table, 1_000) == len(rows)
        assert await tables.count(plain.table, 7) == 7
        nothing = await self.fill(store, NAMES[1], [])
        assert (await tables.look(nothing, Cutoff(T0), 5)).newest is None

    @needs("tables")
    async def test_tables_of_the_stores_own_are_out_of_reach(self, store: Backend) -> None:
        with pytest.raises(ConfigError):
            await self.tables(store).describe(("headrace", "jobs"))
