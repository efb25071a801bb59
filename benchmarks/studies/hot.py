"""Whether a store with a hot table is as small on day 90 as on day 8, and how many bytes a tracked subject takes.

``python -m benchmarks.studies.hot`` runs 90 days of virtual time at 100,000 rows a day on SQLite and PostgreSQL. Jobs
write the rows, others process them, subjects are tracked, and the janitor keeps a week of rows and a day of jobs. The
control keeps everything, for two weeks. On a busy machine the 90 days on SQLite took an hour. ``--items`` and
``--days`` make it smaller;
``--quick`` takes a few seconds, which says little and gives no verdict. ``--plot FILE`` draws what was found;
``make bench`` does.

From day 7 on a store is to grow by no more than 5 %, and to take no more than 500 MB without its trackers. Queries are
to take no longer at the end, a tracked subject 80 bytes on SQLite and 120 on PostgreSQL, and the control is to grow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.fleet import Servers
from benchmarks.machine import Cores, facts
from benchmarks.plots import Panel, draw
from benchmarks.results import HOME, aligned
from benchmarks.studies.stores import fresh
from headrace import App, Client, Settings, Subject, Table, Visited, connect
from headrace.core.clock import ManualClock

OUTPUT = HOME / "hot.jsonl"
STORES = ("sqlite", "postgres")
FLAT = 1.05
MOST = 500_000_000
SUBJECT = {"sqlite": 80, "postgres": 120}
SLOWER = 1.5
_WEEK = 7
_PAGE = 1_000
_TEXT = "A description of some length, as videos have them: what it shows, who made it, where to find more. " * 5


class Video(Struct):
    """About 450 bytes; some have more, some less. If all had the same length, one byte more in each, as SQLite writes
    from row 2,097,152 on, would let one row less fit on every page."""

    id: str
    title: str
    channel: str
    description: str
    views: int
    words: int | None = None
    discovered_at: datetime | None = None


@dataclass(frozen=True)
class Day:
    """One evening: rows and bytes of the table, bytes of all but the trackers, the time of a query, subjects and their
    bytes per piece."""

    store: str
    swept: bool
    day: int
    rows: int
    bytes: int
    store_bytes: int
    """0: it was not measured."""
    query_ms: float
    subjects: int
    subject_bytes: float


Each = Callable[[list[Day]], None]


async def _look(subjects: list[Subject]) -> Visited:
    return Visited(move={one.id: "WEEKLY" for one in subjects if one.tier == "DAILY"})


async def measure(
    url: str, store: str, days: int, items: int, tracked: int, *, swept: bool, each: Each = lambda days: None
) -> list[Day]:
    """Day by day: rows come and are processed, subjects are added and visited, old rows and jobs go. ``each`` gets all
    days every evening."""
    clock = ManualClock()
    app = App(Client(connect(url)._backend, Settings.load({"url": url}, env={}, toml={}), clock=clock))
    life = _Life(app, clock, items, tracked, swept=swept)
    found = []
    async with app:
        if not swept:
            await app.janitor.keep("forever")
        await life.videos.create()
        for day in range(1, days + 1):
            await life.live(day)
            if store == "postgres":
                await asyncio.to_thread(_vacuum, url)
            stats = await life.videos.stats()
            query = min([await _query(life.videos) for _ in range(3)])
            count, size = await life.watch.count(), await _sheets(app.client)
            whole = await _bytes(app.client, store, stats.bytes) - size
            found.append(Day(store, swept, day, stats.rows, stats.bytes, whole, query, count, size / max(count, 1)))
            print(*asdict(found[-1]).values(), flush=True)
            each(found)
    return found


class _Life:
    """An app that finds videos, processes them, and looks at some of them again."""

    def __init__(self, app: App, clock: ManualClock, items: int, tracked: int, *, swept: bool) -> None:
        self._app = app
        self._clock = clock
        self._items = items
        self._tracked = tracked
        self._swept = swept
        keep = "7d" if swept else "3650d"
        self.videos = app.table("videos", Video, keep=keep, age="discovered_at", processed="words", share=0.5)
        self.watch = app.tracker("watch", _look, tiers={"DAILY": "1d", "WEEKLY": "7d"})
        self._find = app.task(name="find")(self._found)
        self._process = app.task(name="process")(self._processed)

    async def live(self, day: int) -> None:
        """A day, and the night in which the janitor comes."""
        pages = range(0, self._items, _PAGE)
        await self._app.enqueue_many([self._find.job(day, start) for start in pages])
        await self._app.drain()
        await self.watch.add_many(f"v{day:03}{number:07}" for number in range(self._tracked))
        self._clock.advance("1d")
        await self._app.drain()
        if self._swept:
            await self._app.janitor.run()

    async def _found(self, day: int, start: int) -> None:
        now = datetime.fromtimestamp(self._clock.now() / 1e6, UTC)
        numbers = range(start, min(start + _PAGE, self._items))
        await self.videos.put_many(
            Video(f"{day}-{n:07}", f"title {n}", "channel", _TEXT[: 150 + n * 7_919 % 301], n, None, now)
            for n in numbers
        )
        await self._process.enqueue([f"{day}-{n:07}" for n in numbers])

    async def _processed(self, ids: list[str]) -> None:
        await self.videos.update_many({"id": one, "words": 40} for one in ids)


def _vacuum(url: str) -> None:
    """What autovacuum does many times a day. Days are seconds here, in which it hardly wakes up once."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM public.videos, headrace.sheets, headrace.sheet_contents")


async def _query(videos: Table[Video]) -> float:
    """All rows, counted by age: what a person asks."""
    began = time.perf_counter()
    await videos.preview()
    return (time.perf_counter() - began) * 1e3


async def _bytes(client: Client, store: str, table: int) -> int:
    """All that the store takes up, and the table: on PostgreSQL it lies in another schema."""
    usage = (await client.backend()).usage
    assert usage is not None
    return (await usage()).used + (table if store == "postgres" else 0)


async def _sheets(client: Client) -> int:
    """Bytes of all sheets with their indexes."""
    backend: Any = client._backend
    if hasattr(backend, "_connections"):
        names = "('sheets', 'sheet_contents', 'trackers')"
        query = f"SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class WHERE relname IN {names}"
        return int((await backend._connections.rows(query))[0][0] or 0)
    names = "SELECT name FROM sqlite_schema WHERE tbl_name IN ('sheets', 'sheet_contents')"
    query = f"SELECT coalesce(sum(pgsize), 0) FROM dbstat WHERE aggregate = TRUE AND name IN ({names})"
    return int(await backend._read(lambda session, _: session.one(query)[0], None))


def plot(days: Sequence[Day]) -> str:
    """Three pictures: bytes of the store, time of a query, bytes per subject."""
    lines: dict[str, list[Day]] = {}
    for one in days:
        lines.setdefault(f"{one.store}{'' if one.swept else ', not swept'}", []).append(one)
    kept = {name: line for name, line in lines.items() if line[0].swept}
    whole = {name: line for name, line in lines.items() if line[0].store_bytes}
    tables = {f"{name}, the table alone": line for name, line in lines.items() if name in kept or name not in whole}
    sizes = {name: [(one.day, one.store_bytes / 1e6) for one in line] for name, line in whole.items()}
    sizes |= {name: [(one.day, one.bytes / 1e6) for one in line] for name, line in tables.items()}
    times = {name: [(one.day, one.query_ms) for one in line] for name, line in lines.items()}
    subjects = {name: [(one.day, one.subject_bytes) for one in line] for name, line in kept.items()}
    return draw(
        [
            Panel("hot store without trackers, MB", sizes),
            Panel("a query over all rows, ms", times),
            Panel("bytes per tracked subject", subjects),
        ]
    )


def verdict(days: Sequence[Day]) -> list[str]:
    """What is not as it is to be."""
    told = []
    for store in dict.fromkeys(one.store for one in days):
        kept = [one for one in days if one.store == store and one.swept]
        grown = [one for one in days if one.store == store and not one.swept]
        told += [f"{store}: {sentence}" for sentence in (*_flat(store, kept), *_grows(kept, grown))]
    return told


def _flat(store: str, days: Sequence[Day]) -> list[str]:
    later = [one for one in days if one.day >= _WEEK]
    if len(later) < 2:
        return [f"it takes 8 days to see whether it is flat; there are {len(days)}"]
    first, rest = later[:_WEEK], later[-30:]
    base, most = statistics.median(one.store_bytes for one in first), max(one.store_bytes for one in later)
    soon, late = (statistics.median(one.query_ms for one in some) for some in (first, rest))
    checks = (
        (most > FLAT * base, f"it grew from {base / 1e6:.0f} to {most / 1e6:.0f} MB after day {_WEEK}"),
        (most > MOST, f"it takes {most / 1e6:.0f} MB, more than {MOST / 1e6:.0f} MB"),
        (late > SLOWER * soon, f"a query took {soon:.0f} ms after a week, and {late:.0f} ms at the end"),
        (days[-1].subject_bytes > SUBJECT[store], f"a subject takes {days[-1].subject_bytes:.0f} bytes"),
    )
    return [sentence for bad, sentence in checks if bad]


def _grows(kept: Sequence[Day], grown: Sequence[Day]) -> list[str]:
    """The control: it grows day by day, past the store that is swept."""
    if not grown:
        return ["there is no control"]
    past = grown[-1].store_bytes > 1.2 * max(one.store_bytes for one in kept)
    grew = past and grown[-1].store_bytes > 1.5 * grown[len(grown) // 2].store_bytes
    return [] if grew else ["the control did not grow, so this shows nothing"]


def table(days: Sequence[Day]) -> str:
    """Every tenth day for people."""
    rows: list[Sequence[str]] = [
        ("store", "swept", "day", "rows", "table MB", "store MB", "query ms", "subjects", "B/subject")
    ]
    last = max(one.day for one in days)
    rows += [
        (
            one.store, str(one.swept), str(one.day), f"{one.rows:,}", f"{one.bytes / 1e6:.1f}",
            f"{one.store_bytes / 1e6:.1f}", f"{one.query_ms:.1f}", f"{one.subjects:,}", f"{one.subject_bytes:.1f}",
        )
        for one in days if one.day in (1, 8, last) or one.day % 10 == 0
    ]  # fmt: skip
    return "\n".join(aligned(rows))


def save(output: Path, run: dict[str, Any], days: Sequence[Day]) -> None:
    """Into the file, in the place of the same store's days, with or without a janitor; the rest stays. So a run that is
    stopped leaves what it has found."""
    which = run["store"], run["swept"]
    known = [json.loads(line) for line in output.read_text("utf-8").splitlines()] if output.exists() else []
    lines = [line for line in known if (line.get("store"), line.get("swept")) != which]
    lines += [{"kind": "run", **run}, *({"kind": "day", **asdict(one)} for one in days)]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")


def read(output: Path) -> list[Day]:
    """All days in a file."""
    lines = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    found = [{k: v for k, v in one.items() if k != "kind"} for one in lines if one["kind"] == "day"]
    return [Day(**({"store_bytes": 0} | one)) for one in found]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.hot", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--days", type=int, default=90)
    parser.add_argument("--items", type=int, default=100_000, help="rows a day")
    parser.add_argument("--tracked", type=int, default=10_000, help="new subjects a day")
    parser.add_argument("--control", type=int, default=14, help="days of the control, that are not swept")
    parser.add_argument("--store", choices=STORES, action="append")
    parser.add_argument("--place", type=Path, help="where the stores' files are; must be a disk, not memory")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--plot", type=Path, help="draw what --output has, and measure nothing")
    given = parser.parse_args(arguments)
    if given.plot is not None:
        given.plot.write_text(plot(read(given.output)), "utf-8")
        return 0
    sizes = (10, 40, 20) if given.quick else (given.days, given.items, given.tracked)
    found: list[Day] = []
    machine = facts(given.place or Path(tempfile.gettempdir()))
    sized = dict(zip(("days", "items", "tracked"), sizes, strict=True))
    with Servers(given.place, Cores.pick().other) as servers:
        for store in given.store or STORES:
            for swept in (True, False):
                span = sizes[0] if swept else min(sizes[0], given.control)
                run = {"store": store, "swept": swept, "machine": machine} | sized | {"days": span}
                each = partial(save, given.output, run)
                with fresh(store, servers, given.place) as place:
                    found += asyncio.run(measure(place.url, store, span, *sizes[1:], swept=swept, each=each))
    print(table(found))
    told = [] if given.quick else verdict(found)
    print("\n".join(told or ["as it is to be" if not given.quick else "no verdict: too small"]))
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
