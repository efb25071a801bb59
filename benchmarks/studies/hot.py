"""Whether a hot table stays as small on day 90 as on day 8, and how many bytes a tracked subject takes.

``python -m benchmarks.studies.hot`` runs 90 days of virtual time at 100,000 rows a day on SQLite and PostgreSQL, once
with a week's retention and once with ten years' (the control); that takes hours. ``--items`` and ``--days`` make it
smaller; ``--quick`` takes a few seconds, which says little. ``--plot FILE`` draws what was found; ``make bench`` does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.fleet import Servers
from benchmarks.machine import Cores, facts
from benchmarks.plots import Panel, draw
from benchmarks.results import HOME, aligned
from benchmarks.studies.stores import fresh
from headrace import App, Client, Settings, Subject, Table, Tracker, Visited, connect
from headrace.core.clock import ManualClock

OUTPUT = HOME / "hot.jsonl"
STORES = ("sqlite", "postgres")
_PAGE = 1_000
_TEXT = "A description of some length, as videos have them: what it shows, who made it, where to find more. " * 3


class Video(Struct):
    """About 450 bytes."""

    id: str
    title: str
    channel: str
    description: str
    views: int
    words: int | None = None
    discovered_at: datetime | None = None


@dataclass(frozen=True)
class Day:
    """One evening: rows and bytes of the table, the median time of a query, subjects and their bytes per piece."""

    store: str
    swept: bool
    day: int
    rows: int
    bytes: int
    query_ms: float
    subjects: int
    subject_bytes: float


async def _look(subjects: list[Subject]) -> Visited:
    return Visited(move={one.id: "WEEKLY" for one in subjects if one.tier == "DAILY"})


async def measure(url: str, store: str, days: int, items: int, tracked: int, *, swept: bool) -> list[Day]:
    """Day by day: rows come and are processed, subjects are added and visited, old rows go."""
    clock = ManualClock()
    client = Client(await _backend(url), Settings.load({"url": url}, env={}, toml={}), clock=clock)
    app = App(client)
    keep = "7d" if swept else "3650d"
    videos = app.table("videos", Video, keep=keep, age="discovered_at", processed="words", share=0.5)
    watch = app.tracker("watch", _look, tiers={"DAILY": "1d", "WEEKLY": "7d"})
    found = []
    async with app:
        await videos.create()
        for day in range(1, days + 1):
            await _day(videos, watch, clock, day, items, tracked)
            await videos.sweep()
            if store == "postgres":
                await asyncio.to_thread(_vacuum, url)
            stats = await videos.stats()
            query = statistics.median([await _query(videos) for _ in range(5)])
            count = await watch.count()
            size = await _sheets(client)
            found.append(Day(store, swept, day, stats.rows, stats.bytes, query, count, size / max(count, 1)))
            print(*asdict(found[-1]).values(), flush=True)
    return found


async def _day(videos: Table[Video], watch: Tracker, clock: ManualClock, day: int, items: int, tracked: int) -> None:
    now = datetime.fromtimestamp(clock.now() / 1e6, UTC)
    for start in range(0, items, _PAGE):
        rows = [
            Video(f"{day}-{number:07}", f"title {number}", "channel", _TEXT, number, None, now)
            for number in range(start, min(start + _PAGE, items))
        ]
        await videos.put_many(rows)
        await videos.update_many({"id": row.id, "words": 40} for row in rows)
    await watch.add_many(f"v{day:03}{number:07}" for number in range(tracked))
    clock.advance("1d")
    await watch._owner.drain()  # type: ignore[attr-defined]


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


async def _backend(url: str) -> Any:
    return connect(url)._backend


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
    """Three pictures: bytes of the table, time of a query, bytes per subject."""
    lines: dict[str, list[Day]] = {}
    for one in days:
        lines.setdefault(f"{one.store}{'' if one.swept else ', not swept'}", []).append(one)
    kept = {name: line for name, line in lines.items() if line[0].swept}
    return draw(
        [
            Panel(
                "hot table, MB", {name: [(one.day, one.bytes / 1e6) for one in line] for name, line in lines.items()}
            ),
            Panel(
                "a query over all rows, ms", {n: [(one.day, one.query_ms) for one in line] for n, line in lines.items()}
            ),
            Panel(
                "bytes per tracked subject",
                {n: [(one.day, one.subject_bytes) for one in line] for n, line in kept.items()},
            ),
        ]
    )


def table(days: Sequence[Day]) -> str:
    """Every tenth day for people."""
    rows: list[Sequence[str]] = [("store", "swept", "day", "rows", "MB", "query ms", "subjects", "B/subject")]
    last = max(one.day for one in days)
    rows += [
        (
            one.store, str(one.swept), str(one.day), f"{one.rows:,}", f"{one.bytes / 1e6:.1f}", f"{one.query_ms:.1f}",
            f"{one.subjects:,}", f"{one.subject_bytes:.1f}",
        )
        for one in days if one.day in (1, 8, last) or one.day % 10 == 0
    ]  # fmt: skip
    return "\n".join(aligned(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.hot", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--days", type=int, default=90)
    parser.add_argument("--items", type=int, default=100_000, help="rows a day")
    parser.add_argument("--tracked", type=int, default=10_000, help="new subjects a day")
    parser.add_argument("--control", type=int, help="days that are not swept; as many by default")
    parser.add_argument("--store", choices=STORES, action="append")
    parser.add_argument("--place", type=Path, help="where the stores' files are; must be a disk, not memory")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--plot", type=Path, help="draw what --output has, and measure nothing")
    given = parser.parse_args(arguments)
    if given.plot is not None:
        lines = [json.loads(line) for line in given.output.read_text("utf-8").splitlines()]
        days = [Day(**{k: v for k, v in one.items() if k != "kind"}) for one in lines if one["kind"] == "day"]
        given.plot.write_text(plot(days), "utf-8")
        return 0
    sizes = (10, 40, 20) if given.quick else (given.days, given.items, given.tracked)
    found: list[Day] = []
    with Servers(given.place, Cores.pick().other) as servers:
        for store in given.store or STORES:
            for swept in (True, False):
                span = sizes[0] if swept or given.control is None else given.control
                with fresh(store, servers, given.place) as place:
                    found += asyncio.run(measure(place.url, store, span, *sizes[1:], swept=swept))
    machine = facts(given.place or Path(tempfile.gettempdir()))
    run = {"kind": "run", "machine": machine} | dict(zip(("days", "items", "tracked"), sizes, strict=True))
    lines = [run, *[{"kind": "day", **asdict(one)} for one in found]]
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
