"""Hot tables on SQLite and PostgreSQL, on a clock that stands still until it is moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import apsw
import psycopg
import pytest
from msgspec import Struct

from headrace import App, EventKind, Subject, Table, Visited
from headrace.api import table as api_table
from headrace.core.alerts import Alert
from headrace.core.clock import ManualClock
from headrace.errors import ConfigError, InvalidJob, SafetyStop, StoreFull
from headrace.hot import sweeping
from headrace.vault.tables import decode
from tests.facades.harness import Events, Store, alerts_of, within

DAY = timedelta(days=1)
NAMES = ["videos", 'odd "name" %s; --', "ünï cödé", "select"]


class Video(Struct):
    id: str
    title: str = ""
    views: int | None = None
    tags: list[str] = []
    embedded: bool = False
    discovered_at: datetime | None = None


class Sink:
    """An archive that stores what it has by name already not again. It may fail after it has stored, or before."""

    def __init__(self) -> None:
        self.files: dict[str, list[Mapping[str, Any]]] = {}
        self.fails = 0
        self.refuses = 0

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        return [row for rows in self.files.values() for row in rows]

    async def append(self, table: str, rows: Sequence[Mapping[str, Any]], *, at: datetime, name: str) -> None:
        if self.refuses:
            self.refuses -= 1
            raise OSError("it is away")
        self.files.setdefault(name, [*rows])
        if self.fails:
            self.fails -= 1
            raise OSError("the answer was lost")


class World:
    """An app, its clock, and a way to run plain SQL beside it."""

    def __init__(self, store: Store, directory: Path) -> None:
        self.store = store
        self.clock = ManualClock()
        self.app = store.app(clock=self.clock)
        self._directory = directory

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now() / 1e6, UTC)

    def table(self, name: Any = "videos", **given: Any) -> Table[Video]:
        options: dict[str, Any] = {"keep": "7d", "age": "discovered_at", "floor": 10}
        return self.app.table(name, Video, **(options | given))

    def run(self, sql: str) -> list[Any]:
        if self.store.kind == "sqlite":
            with apsw.Connection(str(self._directory / "jobs.db")) as connection:
                connection.set_busy_timeout(30_000)
                return connection.execute(sql).fetchall()
        options = "-c search_path=public"
        with psycopg.connect(self.store.url.partition("?")[0], autocommit=True, options=options) as server:
            found = server.execute(sql.encode())
            return found.fetchall() if found.description else []

    def indexes(self, table: str) -> int:
        if self.store.kind == "sqlite":
            return len(self.run(f"SELECT name FROM pragma_index_list('{table}')"))
        return len(self.run(f"SELECT 1 FROM pg_index WHERE indrelid = '{table}'::regclass AND indisvalid"))

    async def fill(self, table: Table[Video], days: int, each: int, **given: Any) -> None:
        for day in range(days):
            at = self.now - DAY * (day + 0.5)
            await table.put_many([Video(f"{day}-{n}", discovered_at=at, **given) for n in range(each)])


@pytest.fixture(params=["sqlite", "postgres"])
async def world(request: Any, tmp_path: Path) -> AsyncIterator[World]:
    store = Store(request.param, tmp_path)
    world = World(store, tmp_path)
    await world.app.client.open()
    if request.param == "postgres":
        world.run("DROP TABLE IF EXISTS videos")
    yield world
    await store.close()


@pytest.mark.parametrize("name", NAMES)
async def test_old_rows_go_and_others_stay_whatever_the_name(world: World, name: str) -> None:
    table = world.table(name)
    if world.store.kind == "postgres":
        world.run(f'DROP TABLE IF EXISTS "{name.replace(chr(34), chr(34) * 2)}"')
    await table.create()
    await table.create()
    await world.fill(table, 9, 20, tags=["a", "ü"], title="it's")
    stats = await table.stats()
    assert (stats.rows, stats.expired, stats.approaching, stats.waiting) == (180, 40, 20, 0)
    assert stats.ages == dict.fromkeys(range(9), 20)
    assert stats.bytes > 0
    plan = await table.preview()
    assert (plan.deleted, plan.kept, plan.retention, plan.stopped) == (40, 140, "7d", "")
    done = await table.sweep()
    assert (done.deleted, done.kept, done.cutoff) == (40, 140, world.now - 7 * DAY)
    assert (await table.sweep()).deleted == 0
    assert (await table.stats()).rows == 140


async def test_rows_are_archived_before_they_go_and_once(world: World) -> None:
    sink = Sink()
    table = world.table(archive=sink)
    await table.create()
    await world.fill(table, 9, 15, views=3)
    sink.fails = 1
    with pytest.raises(OSError, match="lost"):
        await table.sweep()
    assert (await table.stats()).rows == 135
    done = await table.sweep()
    assert (done.deleted, done.archived) == (30, 30)
    assert sorted(row["id"] for row in sink.rows) == sorted(f"{day}-{n}" for day in (7, 8) for n in range(15))
    assert {row["views"] for row in sink.rows} == {3}


@pytest.mark.parametrize("stored", [True, False])
async def test_a_page_that_was_begun_is_archived_once_whatever_becomes_old_meanwhile(
    world: World, stored: bool
) -> None:
    sink = Sink()
    table = world.table(archive=sink, share=1.0)
    await table.create()
    await world.fill(table, 9, 5)
    sink.fails, sink.refuses = (1, 0) if stored else (0, 1)
    with pytest.raises(OSError, match=r"lost|away"):
        await table.sweep()
    world.clock.advance("1d")
    await table.put_many([Video(f"late {n}", discovered_at=world.now - 30 * DAY) for n in range(3_000)])
    done = await table.sweep(force=True)
    assert (done.deleted, done.archived) == (3_015, 3_015)
    assert len(sink.rows) == len({row["id"] for row in sink.rows}) == 3_015


async def test_sweeps_at_once_archive_every_row_once(world: World) -> None:
    sink = Sink()
    table = world.table(archive=sink, share=1.0)
    await table.create()
    await world.fill(table, 1, 2_500)
    world.clock.advance("8d")
    done = await asyncio.gather(*(table.sweep(force=True) for _ in range(3)))
    assert sum(one.deleted for one in done) == 2_500
    assert len(sink.rows) == len({row["id"] for row in sink.rows}) == 2_500


async def test_a_row_that_changes_after_it_was_archived_stays(world: World) -> None:
    class Slow(Sink):
        async def append(self, table: str, rows: Sequence[Mapping[str, Any]], *, at: datetime, name: str) -> None:
            await super().append(table, rows, at=at, name=name)
            world.run("UPDATE videos SET views = 99 WHERE id = '8-0'")

    table = world.table(archive=Slow())
    await table.create()
    await world.fill(table, 9, 3)
    assert (await table.sweep()).deleted == 5
    assert [list(row) for row in world.run("SELECT views FROM videos WHERE id = '8-0'")] == [[99]]


async def test_rows_that_are_not_processed_stay_up_to_a_limit(world: World) -> None:
    table = world.table(processed="embedded", keep_unprocessed="20d", share=0.9)
    await table.create()
    await table.put_many(
        [
            Video(f"{days}-{done}", embedded=done, discovered_at=world.now - days * DAY)
            for days in (1, 8, 25)
            for done in (False, True)
        ]
    )
    stats = await table.stats()
    assert (stats.expired, stats.waiting) == (3, 1)
    assert (await table.sweep()).deleted == 3
    assert sorted(row[0] for row in world.run("SELECT id FROM videos")) == ["1-False", "1-True", "8-False"]


async def test_tables_raise_alerts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that deletes very many rows does, and one that finds rows which are too old but wait to be processed."""
    monkeypatch.setattr(api_table, "_MANY", 20)
    told = Events()
    world.app.observe(told)
    table = world.table(processed="embedded", keep_unprocessed="20d", share=0.9)
    await table.create()
    await world.fill(table, 9, 10, embedded=True)
    assert (await table.sweep()).deleted == 20
    assert not alerts_of(told.of(EventKind.ALERT)), "nothing waits, and twenty are not very many"
    await world.fill(table, 10, 10, embedded=True)
    await table.put_many([Video("waits", embedded=False, discovered_at=world.now - 8 * DAY)])
    assert (await table.sweep()).deleted == 30
    alerts = {event.alert: event for event in told.of(EventKind.ALERT)}
    assert {name: event.subject for name, event in alerts.items()} == dict.fromkeys(
        (Alert.ROWS_WAITING, Alert.MANY_DELETED), table.name
    )
    assert "1 rows are too old, but not processed yet" in alerts[Alert.ROWS_WAITING].detail
    assert "deleted 30 rows" in alerts[Alert.MANY_DELETED].detail


async def test_a_sweep_that_would_delete_most_rows_asks_first(world: World) -> None:
    table = world.table(share=0.5, floor=10)
    await table.create()
    await world.fill(table, 30, 5)
    with pytest.raises(SafetyStop, match="115 of 150 rows") as stop:
        await table.sweep()
    assert stop.value.plan.deleted == 115
    assert (await table.preview()).stopped
    assert (await table.stats()).rows == 150
    assert (await table.sweep(force=True)).deleted == 115


async def test_a_clock_that_jumps_ahead_deletes_nothing(world: World) -> None:
    table = world.table(share=1.0)
    await table.create()
    await world.fill(table, 5, 20)
    world.clock.advance("3650d")
    with pytest.raises(SafetyStop, match="clock"):
        await table.sweep()
    assert (await table.stats()).rows == 100


async def test_a_new_row_does_not_vouch_for_a_clock_that_jumped_ahead(world: World) -> None:
    table = world.table()
    await table.create()
    await world.fill(table, 7, 20)
    assert (await table.sweep()).deleted == 0
    world.clock.advance("3d2h")
    await table.put_many([Video("new", discovered_at=world.now)])
    for _ in range(2):
        with pytest.raises(SafetyStop, match="clock"):
            await table.sweep()
    assert "clock" in (await table.preview()).stopped
    assert (await table.stats()).rows == 141
    assert (await table.sweep(force=True)).deleted == 60
    world.clock.advance("1d")
    await table.put_many([Video(f"newer {n}", discovered_at=world.now) for n in range(20)])
    assert (await table.sweep()).deleted == 20


@pytest.mark.parametrize("sweep", ["7d", "0 0 1 * *"])
async def test_a_sweep_that_comes_seldom_is_in_time(world: World, sweep: str) -> None:
    world.clock.advance(datetime(2027, 3, 1, tzinfo=UTC) - world.now)
    table = world.table(share=1.0, sweep=sweep)
    await table.create()
    await world.fill(table, 7, 5)
    assert (await table.sweep()).deleted == 0
    world.clock.advance("7d" if sweep == "7d" else "31d")
    await table.put_many([Video("new", discovered_at=world.now)])
    assert (await table.sweep()).deleted == 35


async def test_workers_sweep_on_a_schedule(world: World) -> None:
    table = world.table(sweep="1h")
    await table.create()
    await world.fill(table, 8, 20)
    await within(world.app.drain())
    world.clock.advance("2h")
    await within(world.app.drain())
    world.clock.advance("2h")
    await within(world.app.drain())
    assert (await table.stats()).rows <= 140


async def test_a_table_of_ones_own_gets_an_age_and_old_rows_keep_theirs(world: World) -> None:
    kind = "TEXT" if world.store.kind == "sqlite" else "timestamptz"
    world.run(f"CREATE TABLE videos (id text PRIMARY KEY, created_at {kind})")
    for days in (1, 10):
        world.run(f"INSERT INTO videos VALUES ('{days}', '{(world.now - days * DAY):%Y-%m-%d %H:%M:%S+00:00}')")
    world.run("INSERT INTO videos VALUES ('none', NULL)")
    table = world.app.table("videos", keep="7d", age="discovered_at")
    with pytest.raises(ConfigError, match="no column 'discovered_at'"):
        await table.sweep()
    await table.prepare()
    await table.prepare()
    assert (await table.stats()).ages == {-1: 3}
    assert (await table.sweep()).deleted == 0
    with pytest.raises(ConfigError, match="no column 'nope'"):
        await table.backfill("nope")
    assert await table.backfill("created_at") == 2
    assert (await table.sweep()).deleted == 1
    assert await table.backfill() == 1
    assert sorted(row[0] for row in world.run("SELECT id FROM videos")) == ["1", "none"]


async def test_a_sweep_that_deletes_very_many_rows_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_table, "_MANY", 15)
    told: list[tuple[str, str]] = []
    world.app.observe(lambda event: told.append((event.alert or "", event.detail)))
    table = world.table()
    await table.create()
    await world.fill(table, 9, 10)
    assert (await table.sweep()).deleted == 20
    assert [detail for alert, detail in told if alert == "many_deleted"] == [
        "many_deleted: a sweep of table 'videos' deleted 20 rows"
    ]


async def test_every_table_gets_an_index_of_its_age_whatever_its_name(world: World) -> None:
    """Two names that begin alike, and two that run together."""
    one, two = f"{'v' * 40}_a", f"{'v' * 40}_b"
    for name, age in ((one, "at"), (two, "at"), ("v_x", "y"), ("v", "x_y")):
        kind = "TEXT" if world.store.kind == "sqlite" else "timestamptz"
        world.run(f"DROP TABLE IF EXISTS {name}")
        world.run(f"CREATE TABLE {name} (id text PRIMARY KEY, {age} {kind})")
        world.run(f"INSERT INTO {name} (id) VALUES ('a')")
        table = world.app.table(name, keep="7d", age=age)
        await table.prepare()
        await table.prepare()
        assert world.indexes(name) == 2, "that of the key is the other"
    world.run("CREATE TABLE videos (id text PRIMARY KEY, at " + ("TEXT)" if world.store.kind == "sqlite" else "date)"))
    world.run("CREATE INDEX mine ON videos (at, id)")
    await world.app.table("videos", keep="7d", age="at").prepare()
    assert world.indexes("videos") == 2, "one of your own will do"


async def test_others_write_while_an_index_of_the_age_is_made(tmp_path: Path) -> None:
    store = Store("postgres", tmp_path)
    world = World(store, tmp_path)
    await world.app.client.open()
    world.run("DROP TABLE IF EXISTS videos")
    world.run("CREATE TABLE videos (id text PRIMARY KEY, at timestamptz)")
    world.run("INSERT INTO videos VALUES ('a', now())")
    url = store.url.partition("?")[0]
    table = world.app.table("videos", keep="7d", age="at")
    async with await psycopg.AsyncConnection.connect(url) as slow:
        await slow.execute("INSERT INTO public.videos VALUES ('b', now())")
        making = asyncio.create_task(table.prepare())
        while not world.run(
            "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX%' AND wait_event_type = 'Lock'"
        ):
            assert not making.done()
            await asyncio.sleep(0.02)
        async with asyncio.timeout(20):
            await asyncio.to_thread(world.run, "INSERT INTO videos VALUES ('c', now())")
        assert not making.done()
        await slow.commit()
        await within(making)
    assert world.indexes("videos") == 2
    world.run(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid IN (SELECT indexrelid FROM pg_index WHERE "
        "indrelid = 'videos'::regclass AND NOT indisprimary)"
    )
    assert world.indexes("videos") == 1
    await table.prepare()
    assert world.indexes("videos") == 2, "one that a death left half done is made anew"
    await store.close()


async def test_a_sweep_reads_what_goes_and_about_as_much_besides(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog that one sweep cannot delete is counted whole; so its share cannot be got round."""
    monkeypatch.setattr(sweeping, "MOST", 20)
    monkeypatch.setattr(sweeping, "PAGE", 10)
    table = world.table(share=0.5, floor=5, gap="30d")
    await table.create()
    await world.fill(table, 9, 5)
    plan = await table.preview()
    assert (plan.deleted, plan.kept, plan.stopped) == (10, None, "")
    done = await table.sweep()
    assert (done.deleted, done.kept) == (10, None)
    world.clock.advance("6d")
    with pytest.raises(SafetyStop, match="30 of 35 rows"):
        await table.sweep()
    assert (await table.preview()).deleted == (await table.sweep(force=True)).deleted == 20
    assert (await table.stats()).rows == 15


async def test_what_is_refused(world: World) -> None:
    app = world.app
    with pytest.raises(ConfigError, match="not there"):
        await app.table("missing", keep="7d", age="at").sweep()
    own = "jobs" if world.store.kind == "sqlite" else (world.store.url.rpartition("=")[2], "jobs")
    with pytest.raises(ConfigError, match="store's own"):
        await app.table(own, keep="7d", age="at").sweep()
    watchlist = app.table("watchlist", keep=None, age="at")
    with pytest.raises(ConfigError, match="protected"):
        await watchlist.sweep()
    app.protect("search_queue")
    with pytest.raises(ConfigError, match="protected"):
        app.table("search_queue", keep="7d", age="at")
    table = world.table("again")
    with pytest.raises(ConfigError, match="keep=None"):
        app.protect("again")
    with pytest.raises(ConfigError, match="already"):
        world.table("again")
    with pytest.raises(ConfigError, match="no field 'nope'"):
        world.table("other", age="nope")
    for bad in ({"keep": "0s"}, {"keep": "7d", "keep_unprocessed": "1d"}, {"keep": "7d", "share": 2}):
        with pytest.raises(ConfigError):
            world.table("other", **bad)
    assert repr(table) == "Table('again')"


async def test_only_sql_has_tables(tmp_path: Path) -> None:
    async with App("memory://") as app:
        table = app.table("videos", Video, keep="7d", age="discovered_at")
        with pytest.raises(ConfigError, match="SQLite and PostgreSQL"):
            await table.create()


async def test_trackers_and_hot_tables_write_to_the_vault(tmp_path: Path) -> None:
    store, clock, folder = Store("sqlite", tmp_path), ManualClock(), tmp_path / "vault"
    app = store.app(clock=clock, vault={"url": f"file://{folder}"})

    async def visit(subjects: list[Subject]) -> Visited:
        return Visited(rows=[{"id": one.id, "views": 7} for one in subjects])

    watch = app.tracker("metrics", visit, {"HOURLY": "1h"}, results=app.vault)
    videos = app.table("videos", Video, keep="1d", age="discovered_at", archive=app.vault, floor=100)
    await videos.create()
    now = datetime.fromtimestamp(clock.now() / 1e6, UTC)
    names = sorted(f"{number}" for number in range(30))
    await videos.put_many([Video(one, discovered_at=now) for one in names])
    await watch.add_many(names)
    clock.advance("2d")
    await within(app.drain())
    assert (await videos.sweep(force=True)).kept == 0
    for table in ("metrics", "videos"):
        files = folder.glob(f"{table}/date=*/hour=*/*.parquet")
        rows = [row for file in files for row in decode(file.read_bytes()).to_pylist()]
        assert sorted(row["id"] for row in rows) == names
    key = await app.vault.append("metrics", [{"id": "x"}], at=now, name="one")
    assert key is not None
    assert await app.vault.append("metrics", [{"id": "y"}], at=now, name="one") == key
    assert decode((folder / key).read_bytes()).to_pylist() == [{"id": "x"}]
    with pytest.raises(InvalidJob):
        await app.vault.append("metrics", [{"id": "x"}], name="a/b")
    await store.close()


async def test_a_protected_table_is_safe_from_the_rules_of_other_processes(world: World) -> None:
    table = world.table()
    await table.create()
    await world.fill(table, 9, 5)
    other = world.store.app(clock=world.clock)
    async with other:
        await other.janitor.protect(("public", "Videos") if world.store.kind == "postgres" else "Videos")
        assert len(await other.janitor.protected()) == 1
        for call in (table.sweep(force=True), table.preview()):
            with pytest.raises(ConfigError, match=r"protected in the store.*headrace table unprotect videos"):
                await call
        assert (await world.app.janitor.run(force=True)).deleted == 0
        assert (await table.stats()).rows == 45
        assert await other.janitor.unprotect("videos")
        assert not await other.janitor.unprotect("videos")
    assert (await table.sweep()).deleted == 10


async def test_what_an_app_protects_is_protected_for_all_once_a_worker_starts(world: World) -> None:
    world.app.protect("videos", ("shop", "orders"))
    world.app.task(_nothing)
    await world.app.drain()
    assert await world.app.janitor.protected() == ["shop.orders", "videos"]
    other = world.store.app(clock=world.clock)
    async with other:
        with pytest.raises(ConfigError, match="protected in the store"):
            await other.table("videos", Video, keep="7d", age="discovered_at").sweep()


async def test_the_janitor_tells_of_tables(world: World) -> None:
    table = world.table()
    await table.create()
    await world.fill(table, 9, 4)
    plan = await world.app.janitor.preview()
    done = await world.app.janitor.run()
    for run in (plan, done):
        [step] = [step for step in run.steps if step.target == "table videos"]
        assert (step.deleted, step.kept, step.retention, step.cutoff) == (8, 28, "7d", world.now - 7 * DAY)
    await world.fill(table, 9, 4)
    assert await table._sweep_as_job() == 8
    runs = await world.app.janitor.log()
    assert [(run.by == "workers", step.deleted) for run in runs for step in run.steps if "table" in step.target] == [
        (True, 8),
        (False, 8),
    ]
    world.clock.advance("30d")
    with pytest.raises(SafetyStop, match=r"table videos: 28 rows are too old"):
        await world.app.janitor.run()
    assert (await world.app.janitor.run(force=True)).steps[-1].deleted == 28


async def test_rows_are_refused_once_the_table_is_nearly_as_large_as_its_budget(world: World) -> None:
    told: list[str | None] = []
    world.app.observe(lambda event: told.append(event.alert))
    table = world.table(budget=400_000)
    await table.create()

    async def fill() -> None:
        for number in range(60):
            table._budget._until = 0.0  # type: ignore[union-attr]
            await table.put_many([Video(f"{number}-{n}", title="x" * 1_000) for n in range(20)])

    with pytest.raises(StoreFull, match=r"of its budget of 400,000 bytes, and rows are refused from 85%"):
        await fill()
    assert "budget_nearly_used" in told
    assert (await table.stats()).bytes <= 400_000
    await table.update_many([{"id": "0-0", "views": 7}])


async def test_a_day_of_25_hours_and_times_without_a_zone_are_counted_in_utc(world: World) -> None:
    """C25: the cutoff lies between the two half past two of a night in which clocks are set back."""
    table = world.table()
    await table.create()
    night = datetime(2027, 10, 31, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    ages = {
        "summer": night, "winter": night.replace(fold=1),
        "before": datetime(2027, 10, 31, 0, 30), "after": datetime(2027, 10, 31, 1, 30),
    }  # fmt: skip
    await table.put_many([Video(name, discovered_at=at) for name, at in ages.items()])
    world.clock.advance(datetime(2027, 11, 7, 1, tzinfo=UTC) - world.now)
    assert (await table.preview()).deleted == (await table.sweep()).deleted == 2
    assert sorted(row[0] for row in world.run("SELECT id FROM videos")) == ["after", "winter"]


@pytest.mark.parametrize(
    ("keep", "deleted"),
    [("1d", 8), ("7d", 2), ("30d", 0), ("3650d", 0), (None, None), ("0s", "length"), ("-1d", "keep")],
)
async def test_what_goes_by_each_retention(world: World, keep: str | None, deleted: int | str | None) -> None:
    """C25: a week of rows and two days more, one a day."""
    if isinstance(deleted, str):
        with pytest.raises(ConfigError, match=deleted):
            world.table(keep=keep)
        return
    table = world.table(keep=keep)
    await table.create()
    await world.fill(table, 9, 1)
    if deleted is None:
        with pytest.raises(ConfigError, match="protected"):
            await table.sweep(force=True)
    else:
        assert (await table.preview()).deleted == (await table.sweep()).deleted == deleted
    assert (await table.stats()).rows == 9 - (deleted or 0)


async def _nothing() -> None:
    return None
