"""Trackers on every store, on a clock that stands still until it is moved."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest

from headrace import App, Subject, Tracker, Visited
from headrace.core.clock import ManualClock
from headrace.seam.records import Claim
from tests.facades.harness import Store, within

TIERS = {"HOURLY": "1h", "DAILY": "1d"}
LEASE = 30_000_000


class Book:
    """Writes down what is visited."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def visit(self, subjects: list[Subject]) -> Visited:
        self.seen += [one.id for one in subjects]
        return Visited(move={one.id: "DAILY" for one in subjects if one.id.endswith("7")})


def tracked(store: Store, clock: ManualClock, book: Book) -> tuple[App, Tracker]:
    app = store.app(clock=clock)
    return app, app.tracker("watch", book.visit, TIERS, queue="tracking")


def ids(count: int) -> list[str]:
    return [f"subject/{number}" for number in range(count)]


async def test_subjects_are_visited_moved_and_counted(store: Store) -> None:
    clock, book = ManualClock(), Book()
    app, watch = tracked(store, clock, book)
    async with app:
        assert await watch.add_many(ids(1_000)) == 1_000
        assert await watch.add_many(ids(1_001)) == 1
        clock.advance("1h")
        await within(app.drain())
        assert sorted(book.seen) == sorted(ids(1_001))
        assert (await watch.count("HOURLY"), await watch.count("DAILY")) == (901, 100)
        moved = await watch.get("subject/7")
        assert moved is not None
        assert (moved.tier, moved.last_at is None) == ("DAILY", False)
        assert await watch.remove(ids(500)) == 500
        assert len([one async for one in watch.subjects()]) == await watch.count() == 501


async def test_a_visit_whose_worker_vanished_is_made_again(store: Store) -> None:
    clock, book = ManualClock(), Book()
    app, watch = tracked(store, clock, book)
    async with app:
        await watch.add_many(ids(200))
        clock.advance("1h")
        worker = app.client.worker({}, ["elsewhere"], trackers={"watch": watch.row})
        tracks = worker._duties.tracks
        assert tracks is not None
        await tracks.look()
        backend = await app.client.backend()
        lost = await backend.claim(Claim("vanished", ("tracking",), 100, LEASE), clock.stamp())
        assert len(lost.jobs) >= 3
        await within(app.drain())
        assert book.seen == []
        clock.advance("1m")
        await within(app.drain())
        assert sorted(book.seen) == sorted(ids(200))


@pytest.mark.parametrize("commits", [True, False])
async def test_a_row_and_its_tracking_are_one_transaction(tmp_path: Path, commits: bool) -> None:
    store, clock, book = Store("postgres", tmp_path), ManualClock(), Book()
    app, watch = tracked(store, clock, book)
    async with app, await psycopg.AsyncConnection.connect(store.url.partition("?")[0]) as connection:
        await connection.execute("CREATE TEMPORARY TABLE videos (id text)")
        await connection.commit()
        await connection.execute("INSERT INTO videos VALUES ('a')")
        await app.bind(connection).enqueue(watch.adding, ["a", "b"], "DAILY")
        await within(app.drain())
        assert await watch.count() == 0, "nobody sees it yet"
        await (connection.commit() if commits else connection.rollback())
        await within(app.drain())
        rows = await (await connection.execute("SELECT id FROM videos")).fetchall()
        assert (len(rows), await watch.count("DAILY")) == ((1, 2) if commits else (0, 0))
    await store.close()


async def test_writers_at_once_lose_nothing(store: Store) -> None:
    clock = ManualClock()
    trackers = [tracked(store, clock, Book()) for _ in range(3)]
    for app, _ in trackers:
        await app.client.open()
    added = await within(
        asyncio.gather(*[watch.add_many(ids(400), tier) for _, watch in trackers for tier in ("HOURLY", "DAILY")])
    )
    assert sum(added) == 400
    _, watch = trackers[0]
    assert sorted([one.id async for one in watch.subjects()]) == sorted(ids(400))
    for app, _ in trackers:
        await app.close()
