"""Trackers on the memory store, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from headrace import App, Subject, Tracker, Visited
from headrace.errors import ConfigError, InvalidJob
from headrace.seam.tracks import POINTS
from headrace.testing.jobs import in_memory
from headrace.tracking.ground import next_due
from headrace.tracking.pages import FULL, Entry, divide, pack, point, unpack

TIERS = {"HOURLY": "1h", "DAILY": "1d", "WEEKLY": "7d"}
HOUR = timedelta(hours=1)


class Book:
    """A handler that writes down what it visits, and answers what it is told."""

    def __init__(self) -> None:
        self.visits: list[list[Subject]] = []
        self.answers: dict[str, str | None] = {}
        self.fails = 0

    async def visit(self, subjects: list[Subject]) -> Visited:
        if self.fails:
            self.fails -= 1
            raise RuntimeError("no answer from the API")
        self.visits.append(subjects)
        told = {one.id: self.answers[one.id] for one in subjects if one.id in self.answers}
        return Visited(
            move={one: tier for one, tier in told.items() if tier is not None},
            stop=[one for one, tier in told.items() if tier is None],
        )

    def seen(self) -> Counter[str]:
        counted = Counter(one.id for page in self.visits for one in page)
        self.visits.clear()
        return counted


def tracked() -> tuple[App, Tracker, Book]:
    app, book = App("memory://"), Book()
    return app, app.tracker("watch", book.visit, TIERS), book


def ids(count: int, start: int = 0) -> list[str]:
    return [f"video-{number:06}" for number in range(start, start + count)]


async def test_each_subject_is_visited_once_per_interval_of_its_tier() -> None:
    app, watch, book = tracked()
    with in_memory(app) as jobs:
        assert await watch.add_many(ids(500)) == 500
        assert await watch.add_many(ids(100, 1_000), "DAILY") == 100
        total: Counter[str] = Counter()
        for _ in range(3 * 24 * 4):
            jobs.clock.advance("15m")
            await jobs.drain()
            total += book.seen()
        assert {total[one] for one in ids(500)} == {72}
        assert {total[one] for one in ids(100, 1_000)} == {3}


async def test_visits_are_spread_over_the_interval() -> None:
    app, watch, book = tracked()
    with in_memory(app) as jobs:
        await watch.add_many(ids(5_000))
        counts = []
        for _ in range(12):
            jobs.clock.advance("5m")
            await jobs.drain()
            counts.append(sum(book.seen().values()))
        assert sum(counts) == 5_000
        assert max(counts) < 1_000


async def test_the_answer_of_the_handler_moves_and_stops_subjects() -> None:
    app, watch, book = tracked()
    with in_memory(app) as jobs:
        await watch.add_many(ids(300))
        book.answers = dict.fromkeys(ids(100), "DAILY") | dict.fromkeys(ids(50, 100), None)
        jobs.clock.advance("1h")
        await jobs.drain()
        assert set(book.seen()) == {*ids(300)}
        counts = await watch.counts()
        assert {tier: one["subjects"] for tier, one in counts.items()} == {"HOURLY": 150, "DAILY": 100, "WEEKLY": 0}
        assert await watch.get("video-000120") is None
        moved = await watch.get("video-000001")
        assert moved is not None
        assert moved.tier == "DAILY"
        assert moved.last_at is not None
        assert moved.next_at - moved.last_at <= timedelta(days=1)
        jobs.clock.advance("1h")
        await jobs.drain()
        assert set(book.seen()) >= {*ids(150, 150)}


async def test_a_subject_tells_when_it_was_added_and_visited() -> None:
    app, watch, book = tracked()
    with in_memory(app) as jobs:
        began = jobs.clock.now()
        assert await watch.add("a")
        first = await watch.get("a")
        assert first is not None
        assert first.last_at is None
        assert abs(first.added_at - datetime.fromtimestamp(began / 1e6, UTC)) <= timedelta(seconds=1)
        assert timedelta() < first.next_at - first.added_at <= HOUR + timedelta(seconds=1)
        jobs.clock.advance("1h")
        await jobs.drain()
        [[told]] = book.visits
        assert told.last_at is None
        after = await watch.get("a")
        assert after is not None
        assert after.last_at is not None
        assert after.added_at == first.added_at
        assert await watch.move("a", "WEEKLY") == 1
        moved = await watch.get("a")
        assert moved is not None
        assert moved.last_at == after.last_at
        assert not await watch.add("a", "HOURLY")
        assert (await watch.get("a")) == moved


async def test_an_outage_costs_one_visit_not_many() -> None:
    app, watch, book = tracked()
    with in_memory(app) as jobs:
        await watch.add_many(ids(200))
        jobs.clock.advance("1h")
        await jobs.drain()
        book.seen()
        jobs.clock.advance("50h")
        await jobs.drain()
        assert set(book.seen().values()) == {1}


async def test_a_visit_that_fails_is_made_again_and_nothing_is_skipped() -> None:
    app, watch, book = tracked()
    with in_memory(app) as jobs:
        await watch.add_many(ids(80))
        book.fails = 3
        for _ in range(30):
            jobs.clock.advance("10m")
            await jobs.drain()
        assert set(book.seen()) >= {*ids(80)}


async def test_a_job_that_is_gone_is_made_again() -> None:
    app, watch, book = tracked()
    with in_memory(app) as jobs:
        await watch.add_many(ids(30))
        book.fails = 1_000
        jobs.clock.advance("1h")
        await jobs.drain()
        for waiting in jobs.enqueued():
            await app.cancel(waiting.id)
        book.fails = 0
        jobs.clock.advance("10m")
        await jobs.drain()
        assert set(book.seen()) == {*ids(30)}


async def test_a_visit_that_was_made_twice_counts_once() -> None:
    app, watch, book = tracked()
    with in_memory(app) as jobs:
        await watch.add_many(ids(10))
        [before] = [one async for one in watch.subjects() if one.id == "video-000001"]
        jobs.clock.advance("1h")
        await jobs.drain()
        assert len(book.visits) == 1
        await watch.visiting.function("HOURLY", 0, 0)
        assert len(book.visits) == 1
        after = await watch.get(before.id)
        assert after is not None
        assert after.next_at > before.next_at


async def test_two_runs_of_one_visit_at_once_move_subjects_once() -> None:
    app, watch, book = tracked()
    gate = asyncio.Event()
    with in_memory(app):
        await watch.add_many(ids(10))
        book.answers = dict.fromkeys(ids(10), "DAILY")
        plain = book.visit

        async def slow(subjects: list[Subject]) -> Visited:
            await gate.wait()
            return await plain(subjects)

        watch._handler = slow
        both = [asyncio.ensure_future(watch.visiting.function("HOURLY", 0, 0)) for _ in range(2)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*both)
        assert await watch.count("DAILY") == 10
        assert await watch.count() == 10


async def test_subjects_come_and_go_while_their_sheet_is_visited() -> None:
    app, watch, _ = tracked()
    with in_memory(app) as jobs:
        await watch.add_many(ids(60))

        async def visit(subjects: list[Subject]) -> Visited:
            if len(subjects) == 60:
                await watch.add_many(ids(500, 1_000))
                await watch.remove(ids(10))
                await watch.move(ids(10, 10), "WEEKLY")
            return Visited(move=dict.fromkeys([one.id for one in subjects], "DAILY"))

        watch._handler = visit
        jobs.clock.advance("1h")
        await watch.visiting.function("HOURLY", 0, 0)
        counts = await watch.counts()
        assert {tier: one["subjects"] for tier, one in counts.items()} == {"HOURLY": 500, "DAILY": 40, "WEEKLY": 10}
        fresh = await watch.get("video-001000")
        assert fresh is not None
        assert fresh.last_at is None


async def test_any_order_of_changes_keeps_every_subject_once() -> None:
    app, watch, _ = tracked()
    rng = Random(7)
    model: dict[str, str] = {}
    names = ids(400)
    with in_memory(app) as jobs:
        for _ in range(300):
            some = rng.sample(names, rng.randrange(1, 60))
            tier = rng.choice(list(TIERS))
            match rng.randrange(4):
                case 0 | 1:
                    new = [one for one in some if one not in model]
                    assert await watch.add_many(some, tier) == len(new)
                    model |= dict.fromkeys(new, tier)
                case 2:
                    changed = [one for one in some if model.get(one, tier) != tier]
                    assert await watch.move(some, tier) == len(changed)
                    model |= dict.fromkeys(changed, tier)
                case 3:
                    assert await watch.remove(some[:20]) == len([one for one in some[:20] if model.pop(one, None)])
            jobs.clock.advance("7m")
        found = [one async for one in watch.subjects()]
        assert {one.id: one.tier for one in found} == model
        assert len(found) == len(model) == await watch.count()


async def test_many_at_once_add_the_same_subjects() -> None:
    app, watch, _ = tracked()
    with in_memory(app):
        tiers = [*TIERS] * 4
        added = await asyncio.gather(*[watch.add_many(ids(300), tier) for tier in tiers])
        assert sum(added) == 300
        assert len([one async for one in watch.subjects()]) == 300


async def test_sheets_that_have_become_small_are_joined() -> None:
    app, watch, book = tracked()
    with in_memory(app) as jobs:
        await watch.add_many(ids(4_000))
        many = (await watch.counts())["HOURLY"]["sheets"]
        await watch.remove(ids(3_900))
        for _ in range(8):
            jobs.clock.advance("1h")
            await jobs.drain()
        counts = (await watch.counts())["HOURLY"]
        assert counts["subjects"] == 100
        assert many > 40
        assert counts["sheets"] < 12
        book.seen()
        jobs.clock.advance("1h")
        await jobs.drain()
        assert set(book.seen()) == {*ids(100, 3_900)}


class Sink:
    def __init__(self) -> None:
        self.files: dict[tuple[str, datetime, str], Sequence[Mapping[str, Any]]] = {}
        self.fails = self.refuses = 0

    async def append(self, table: str, rows: Sequence[Mapping[str, Any]], *, at: datetime, name: str) -> None:
        if self.refuses:
            self.refuses -= 1
            raise OSError("it is away")
        self.files.setdefault((table, at, name), rows)
        if self.fails:
            self.fails -= 1
            raise OSError("the answer was lost")


async def test_rows_go_to_the_sink_once_per_visit_even_if_it_is_repeated() -> None:
    app, sink = App("memory://"), Sink()

    async def visit(subjects: list[Subject]) -> Visited:
        return Visited(rows=[{"id": one.id, "views": 7} for one in subjects])

    watch = app.tracker("watch", visit, TIERS, results=sink)
    with in_memory(app) as jobs:
        await watch.add_many(ids(200))
        sink.fails = 4
        for _ in range(12):
            jobs.clock.advance("10m")
            await jobs.drain()
        seen: defaultdict[str, set[datetime]] = defaultdict(set)
        for (_, at, _), rows in sink.files.items():
            for row in rows:
                assert at not in seen[row["id"]]
                seen[row["id"]].add(at)
        assert set(seen) == {*ids(200)}


@pytest.mark.parametrize("stored", [True, False])
async def test_a_visit_that_is_repeated_visits_whom_it_visited_first(stored: bool) -> None:
    app, sink = App("memory://"), Sink()

    async def visit(subjects: list[Subject]) -> Visited:
        return Visited(rows=[{"id": one.id} for one in subjects])

    watch = app.tracker("watch", visit, TIERS, results=sink)
    with in_memory(app) as jobs:
        await watch.add_many(ids(40))
        jobs.clock.advance("1h")
        sink.fails, sink.refuses = (1, 0) if stored else (0, 1)
        await jobs.drain()
        await watch.add_many(ids(5, 100))
        await watch.remove(ids(3))
        await watch.move("video-000003", "DAILY")
        jobs.clock.advance("10m")
        await jobs.drain()
        [rows] = sink.files.values()
        assert sorted(row["id"] for row in rows) == (ids(40) if stored else ids(36, 4))
        jobs.clock.advance("1h")
        await jobs.drain()
        [_, rows] = sink.files.values()
        assert sorted(row["id"] for row in rows) == [*ids(36, 4), *ids(5, 100)]
        documents = (await app.client.backend()).documents
        assert documents is not None
        assert await documents.find("tracks/visit/") == []


async def test_a_tier_that_is_no_more_is_told_and_keeps_its_subjects() -> None:
    app, watch, _ = tracked()
    with in_memory(app) as jobs:
        await watch.add_many(ids(5), "WEEKLY")
        other, book = App(app.client), Book()
        new = other.tracker("watch", book.visit, {"HOURLY": "1h"})
        jobs.clock.advance("8d")
        await other.drain()
        assert (await new.counts())["WEEKLY"]["subjects"] == 5
        assert book.visits == []


@pytest.mark.parametrize(
    "tiers", [{}, {"A": "0s"}, {"A": "10ms"}, {"": "1h"}, {"A": "soon"}, ["A"], {"A": None}], ids=str
)
def test_tiers_that_cannot_be(tiers: Any) -> None:
    with pytest.raises((ConfigError, InvalidJob)):
        App("memory://").tracker("watch", Book().visit, tiers)


async def test_what_is_refused() -> None:
    app, watch, _ = tracked()
    with pytest.raises(ConfigError, match="async function"):
        app.tracker("plain", lambda subjects: None, TIERS)  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigError, match="already"):
        app.tracker("watch", Book().visit, TIERS)
    with pytest.raises(ConfigError, match="unknown"):
        app.tracker("other", Book().visit, TIERS, queues="x")  # type: ignore[call-arg]
    with in_memory(app):
        with pytest.raises(ConfigError, match="HOURLY, DAILY, WEEKLY"):
            await watch.add("a", "MONTHLY")
        with pytest.raises(ConfigError, match="list of ids"):
            await watch.add_many("abc")
        for bad in ("", "a\0b", "x" * 1_025, "\ud800", 7):
            with pytest.raises(InvalidJob):
                await watch.add(bad)  # type: ignore[arg-type]
        assert await watch.count() == 0


@pytest.mark.parametrize(
    "answer",
    [
        7,
        Visited(move={"b": "DAILY"}),
        Visited(move={"a": "NO"}),
        Visited(stop="a"),
        Visited(move={"a": "DAILY"}, stop=["a"]),
        Visited(rows=[{}]),
    ],
    ids=str,
)
async def test_an_answer_that_makes_no_sense_fails_the_job_and_changes_nothing(answer: Any) -> None:
    app = App("memory://")

    async def visit(subjects: list[Subject]) -> Any:
        return answer

    watch = app.tracker("watch", visit, TIERS)
    with in_memory(app) as jobs:
        await watch.add("a")
        before = await watch.get("a")
        jobs.clock.advance("1h")
        await jobs.drain()
        assert await watch.get("a") == before
        [job] = jobs.enqueued()
        assert "tracker" in str((await app.get(job.id)).failures[-1])


def test_sheets_are_divided_by_points() -> None:
    entries = {name: Entry(5, 0) for name in ids(2_000)}
    parts = [*divide(0, dict(entries))]
    assert [low for low, _ in parts] == sorted({low for low, _ in parts})
    assert parts[0][0] == 0
    joined: dict[str, Entry] = {}
    for (low, part), (high, _) in zip(parts, [*parts[1:], (POINTS, {})], strict=True):
        assert all(low <= point(name) < high for name in part)
        assert len(pack(part)) <= FULL
        assert unpack(pack(part)) == part
        joined |= part
    assert joined == entries


def test_a_sheet_is_due_once_per_interval() -> None:
    rng = Random(3)
    for _ in range(1_000):
        low, interval, now = rng.randrange(POINTS), rng.randrange(1_000_000, 10**13), rng.randrange(10**16)
        due = next_due(low, interval, now)
        assert now < due <= now + interval
        assert next_due(low, interval, due) == due + interval
