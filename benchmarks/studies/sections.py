"""Sections of every size come back as they were, from every store, in it and through objects; and the memory it takes.

``python -m benchmarks.studies.sections`` takes some minutes; ``--quick`` leaves the largest out. A job is enqueued,
claimed with its section, claimed without it and given another one, and claimed with that; so is one with a key. What
counts is the most memory that a process which does one of these ever had, beyond what it had after a small job, in
multiples of the size. On PostgreSQL, what its driver takes to write and to read one value is measured beside, without
Headrace.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import psycopg
from servers.seaweedfs import SeaweedFS

from benchmarks.fleet import Servers
from benchmarks.machine import facts
from benchmarks.results import HOME, aligned
from benchmarks.studies.stores import WITH_STREAMS, fresh, keep
from headrace import App, NewJob, Sections
from headrace.types import SECTIONS

OUTPUT = HOME / "sections.jsonl"
MIB = 1024 * 1024
SIZES = (0, 1, 4_500, MIB, 64 * MIB - 128)
_SMALL = 100
_MOST = 3.0
"""Times its size: the memory that a section may take."""
_MOST_KEYED = 4.0
"""The same where a job with a key, or a waiter, is enqueued on PostgreSQL (ADR 013)."""
_TIMES = 128
_ALWAYS = {name: {"over": 0, "least": 0} for name in SECTIONS}


@dataclass(frozen=True)
class Cell:
    """One section of one size."""

    way: str
    section: str
    size: int
    same: bool
    """Whether it came back as it was stored, by an enqueue and by a run."""
    memory: dict[str, float]
    """Beyond that of a small job, in multiples of the section, by part; empty: it is too small to tell."""
    kind: str = "sections"


@dataclass(frozen=True)
class Driver:
    """What a driver alone takes for one value, in multiples of it, your own copy included."""

    size: int
    memory: dict[str, float]
    kind: str = "sections, driver"


def app_on(url: str, objects: str, *, away: bool) -> App:
    where = {"objects": {"url": objects} | _ALWAYS} if away else {}
    return App(url, payloads={"max_size": 64 * MIB, "compress_over": None}, worker={"concurrency": 1}, **where)  # type: ignore[arg-type]


def block_of(section: str, size: int, turn: int) -> tuple[bytes, int]:
    """What the body repeats, and how often. So it is made, and its digest found, without a second copy of it."""
    times = _TIMES if size > MIB else 1
    return Random(f"{section} {size} {turn}").randbytes(size // times), times


def body_of(section: str, size: int, turn: int) -> bytes:
    block, times = block_of(section, size, turn)
    return block * times


def digest_of(section: str, size: int, turn: int) -> str:
    block, times = block_of(section, size, turn)
    digest = hashlib.sha256()
    for _ in range(times):
        digest.update(block)
    return digest.hexdigest()


def most_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def produce(app: App, section: str, size: int, queue: str = "default", key: str | None = None) -> bool:
    """Enqueue it."""
    sections = Sections(**{section: body_of(section, size, 0)})
    await app.client.insert([NewJob(task="t", queue=queue, key=key, sections=sections)])
    return True


async def read(app: App, section: str, size: int, turn: int, queue: str = "default") -> bool:
    """Claim the job with its section; whether that is as it was stored."""
    async with app.pull(queue, want={section}) as pull:
        [job] = await pull.take(1, wait="10m")
        found = hashlib.sha256(job.section(section) or b"").hexdigest()
        job.set_state("available")
        await job.release()
    return found == digest_of(section, size, turn)


async def write(app: App, section: str, size: int, queue: str = "default") -> bool:
    """Claim the job without its section, and replace that."""
    async with app.pull(queue, want=set()) as pull:
        [job] = await pull.take(1, wait="10m")
        getattr(job, f"set_{section}")(body_of(section, size, 1))
        job.set_state("available")
        await job.release()
    return True


KEYED = "keyed producer"
PARTS = {
    "producer": produce,
    "reader": partial(read, turn=0),
    "writer": write,
    "reader again": partial(read, turn=1),
    KEYED: partial(produce, queue="keyed", key="k"),
    "keyed writer": partial(write, queue="keyed"),
    "keyed reader": partial(read, turn=1, queue="keyed"),
}
"""A job with a key goes to PostgreSQL another way, as one with a waiter does."""


async def act(app: App, parts: Sequence[str], section: str, size: int) -> dict[str, Any]:
    """Do these parts; how much memory it took at most, before and after."""
    async with app:
        await app.client.insert([NewJob(task="t", queue="small", sections=Sections(**{section: bytes(_SMALL)}))])
        async with app.pull("small") as pull:
            [job] = await pull.take(1, wait="10m")
            job.set_state("completed")
            await job.release()
        base = most_memory()
        same = [await PARTS[part](app, section, size) for part in parts]
    return {"base": base, "most": most_memory(), "same": all(same)}


def drive(part: str, size: int) -> None:
    """One value, written or read by psycopg alone, as its process does it."""
    with psycopg.connect(os.environ["STUDY_URL"], autocommit=True) as connection:
        cursor = connection.cursor(binary=True)
        cursor.execute("CREATE TABLE IF NOT EXISTS alone (value bytea)")
        base = most_memory()
        if part == "writes":
            cursor.execute("INSERT INTO alone VALUES (%b)", (body_of("blob", size, 0),))
        else:
            [[_value]] = cursor.execute("SELECT value FROM alone").fetchall()
    print(json.dumps({"base": base, "most": most_memory()}))


def driver(servers: Servers, place: Path | None, size: int) -> Driver:
    """What psycopg takes."""
    with fresh("postgres", servers, place) as made:
        found = {part: _process(f"s.drive({part!r}, {size})", made.url, "") for part in ("writes", "reads")}
    return Driver(size, {part: round((one["most"] - one["base"]) / size, 2) for part, one in found.items()})


def played(parts: Sequence[str], url: str, objects: str, way: str, section: str, size: int) -> dict[str, Any]:
    """Some parts, in a process of their own."""
    return _process(f"s.play({list(parts)!r}, {way!r}, {section!r}, {size})", url, objects)


def _process(call: str, url: str, objects: str) -> dict[str, Any]:
    code = f"import benchmarks.studies.sections as s; {call}"
    environment = os.environ | {"STUDY_URL": url, "STUDY_OBJECTS": objects}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{call}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


def play(parts: Sequence[str], way: str, section: str, size: int) -> None:
    """The parts, as their process does them."""
    logging.getLogger("headrace").setLevel(logging.ERROR)
    app = app_on(os.environ["STUDY_URL"], os.environ["STUDY_OBJECTS"], away=way == "objects")
    print(json.dumps(asyncio.run(act(app, parts, section, size))))


def measure(store: str, servers: Servers, objects: SeaweedFS, place: Path | None, sizes: Sequence[int]) -> list[Cell]:
    """Every section of every size, both ways. Each part of a large one has a process of its own."""
    cells = []
    for way in ("inline", "objects"):
        for section in SECTIONS:
            for size in sizes:
                groups = [[part] for part in PARTS] if size > MIB else [list(PARTS)]
                with fresh(store, servers, place) as made:
                    url = objects.url(f"sections/{store}/{way}/{section}/{size}")
                    found = [played(parts, made.url, url, way, section, size) for parts in groups]
                same = all(one["same"] for one in found)
                shares = {}
                if size > MIB:
                    shares = {
                        name: round((one["most"] - one["base"]) / size, 2)
                        for name, one in zip(PARTS, found, strict=True)
                    }
                cells.append(Cell(way, section, size, same, shares))
    return cells


def table(found: dict[str, list[Cell]]) -> str:
    """The cells for people: of each size, the worst section."""
    rows: list[Sequence[str]] = [("store", "way", "bytes", "as stored", *(f"{part}, x size" for part in PARTS))]
    for store, cells in found.items():
        for way in ("inline", "objects"):
            for size in sorted({cell.size for cell in cells}):
                these = [cell for cell in cells if (cell.way, cell.size) == (way, size)]
                most = [max((cell.memory.get(part, 0.0) for cell in these), default=0.0) for part in PARTS]
                same = f"{sum(cell.same for cell in these)} of {len(these)}"
                rows.append((store, way, f"{size:,}", same, *(f"{one:.2f}" if one else "" for one in most)))
    return "\n".join(aligned(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.sections", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without the largest")
    parser.add_argument("--store", choices=WITH_STREAMS, action="append", help="may be repeated; default: all")
    parser.add_argument("--place", type=Path, help="where the servers' files are")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    found: dict[str, list[Cell]] = {}
    alone: list[Driver] = []
    objects = SeaweedFS()
    objects.start()
    try:
        with Servers(given.place, None) as servers:
            for store in given.store or WITH_STREAMS:
                sizes = SIZES[:-1] if given.quick else SIZES
                found[store] = measure(store, servers, objects, given.place, sizes)
                if store == "postgres" and not given.quick:
                    alone = [driver(servers, given.place, SIZES[-1])]
    finally:
        objects.close()
    machine = facts(given.place or Path(tempfile.gettempdir()))
    for store, cells in found.items():
        drivers = alone if store == "postgres" else []
        keep(given.output, store, machine, [asdict(line) for line in (*cells, *drivers)])
    print(table(found))
    for one in alone:
        print(f"psycopg alone, x size: {one.memory}")
    return 0 if all(is_right(cell, store) for store, cells in found.items() for cell in cells) else 1


def is_right(cell: Cell, store: str) -> bool:
    """Whether it came back as it was, and took no more memory than it may."""
    keyed = _MOST_KEYED if store in ("postgres", "streams") and cell.way == "inline" else _MOST
    return cell.same and all(share <= (keyed if part == KEYED else _MOST) for part, share in cell.memory.items())


if __name__ == "__main__":
    sys.exit(main())
