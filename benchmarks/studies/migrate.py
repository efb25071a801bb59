"""A store moves to another one under load: how long it takes, what producers feel, and that nothing is lost or doubled.

``python -m benchmarks.studies.migrate`` moves 200,000 jobs (delayed, with keys, in groups, dead letters) and schedules
from SQLite to PostgreSQL, on to PostgreSQL with Valkey, and back to SQLite; then others from Valkey to PostgreSQL.
Producers and workers never stop. The mover is a process of its own, and is killed again and again. On the first way, a
tenth of the jobs is rolled back from every phase before. ``--jobs 2000`` is a small run. The last line is a verdict.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from servers.postgres import Postgres
from servers.valkey import Valkey

from benchmarks.machine import facts
from benchmarks.results import HOME
from benchmarks.studies.migrate_load import SCHEDULES, Load
from headrace import Streams
from headrace.api.connection import open_backend
from headrace.routing import parity, passage
from headrace.routing.moving import Moving

OUTPUT = HOME / "migrate.jsonl"
_KILLED_AFTER = 4.0
"""Seconds that the first mover lives; each has a second more than the one before."""
_CALM = 5.0
_SLOWER = 3.0
"""By how much producers may become slower, at the 99th percentile."""
_PHASES = ("shadow", "dual", "cutover", "moved")


class Way(Struct, frozen=True):
    """From one store to another."""

    name: str
    old: str
    new: str

    @property
    def url(self) -> str:
        return f"{self.old} -> {self.new}"


async def _headrace(*words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "headrace", *words, stderr=subprocess.DEVNULL)


async def _command(way: Way, *words: str) -> None:
    process = await _headrace("transfer", *words, "--url", way.url)
    if await process.wait():
        raise RuntimeError(f"transfer {' '.join(words)} ended with {process.returncode}")


async def _opened(way: Way) -> Moving:
    store = open_backend(way.url)
    assert isinstance(store, Moving)
    await store.open()
    return store


async def _phase(store: Moving) -> str | None:
    transfer = await passage.read(store.old)
    return None if transfer is None else transfer.phase.value


async def _move(way: Way, store: Moving, command: str, until: str | None) -> int:
    """Run the command, and kill it again and again, until the transfer is in that phase (None: there is none): how
    often it was killed."""
    kills = 0
    while await _phase(store) != until:
        process = await _headrace("transfer", command, "--yes", "--url", way.url)
        try:
            async with asyncio.timeout(_KILLED_AFTER + kills):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            kills += 1
    return kills


async def _verify(store: Moving) -> dict[str, int]:
    await store.look()
    transfer = await passage.read(store.old)
    assert transfer is not None
    verdict = await parity.verify(store, transfer)
    return {"moved": verdict.arrived, "lost": verdict.lost, "doubled": verdict.doubled}


async def roll_back(way: Way, jobs: int) -> dict[str, Any]:
    """Begin to move, and go back, from every phase."""
    load, found = Load(), {}
    store = await _opened(way)
    await load.fill(store, jobs)
    before = await load.held(store, jobs)
    load.start(way.url)
    for phase in _PHASES:
        await _command(way, "start", *(["--dual"] if phase == "dual" else []))
        if phase == "cutover":
            process = await _headrace("transfer", "cutover", "--yes", "--url", way.url)
            async with asyncio.timeout(60):
                while await _phase(store) not in ("cutover", "moved"):
                    await asyncio.sleep(0.02)
            process.kill()
            await process.wait()
        elif phase == "moved":
            await _move(way, store, "cutover", "moved")
        reached = await _phase(store)
        kills = await _move(way, store, "rollback", None)
        load.failed()
        found[phase] = {"from": reached, "kills": kills, "same": await load.held(store, jobs) == before}
    await load.stop()
    await store.close()
    return _shown({"way": f"{way.name}, and back", "jobs": jobs, "phases": found} | _runs(load))


def _shown(one: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(one), flush=True)
    return one


def _runs(load: Load) -> dict[str, Any]:
    return {
        "ran": len(load.runs),
        "ran_twice": sum(count > 1 for count in load.runs.values()),
        "never_ran": len(load.enqueued - load.runs.keys()),
        "refused": load.refused,
    }


async def travel(ways: list[Way], jobs: int) -> list[dict[str, Any]]:
    """Move all jobs along these ways, while the same producers and workers go on."""
    load, found = Load(), []
    first = await _opened(ways[0])
    await load.fill(first, jobs)
    before = await load.held(first, jobs)
    await first.close()
    for number, way in enumerate(ways):
        if number:
            load.go_to(way.url)
        else:
            load.start(way.url)
        store = await _opened(way)
        await asyncio.sleep(_CALM)
        load.felt()
        await asyncio.sleep(_CALM)
        calm, began = load.felt(), time.perf_counter()
        await _command(way, "start", "--dual")
        await asyncio.sleep(_CALM)
        copying = load.felt()
        kills = await _move(way, store, "cutover", "moved")
        moving, verdict = load.felt(), await _verify(store)
        load.failed()
        await _command(way, "finish", "--yes")
        same = await load.held(store, jobs) == before
        seconds = round(time.perf_counter() - began, 1)
        found.append(_shown({
            "way": way.name, "jobs": jobs, "seconds": seconds, "kills": kills, "verdict": verdict, "same": same,
            "producers": {"before": calm, "with copies": copying, "while jobs move": moving},
        }))  # fmt: skip
        await store.close()
    load.go_to(ways[-1].new)
    await load.stop()
    found[-1] |= _runs(load)
    return found


def problems(found: dict[str, Any]) -> list[str]:
    """What is not as it must be."""
    name, said = found["way"], []
    verdict = found.get("verdict", {})
    for bad in ("lost", "doubled"):
        if verdict.get(bad):
            said.append(f"{name}: {verdict[bad]} jobs {bad}")
    said += [f"{name}: {found[bad]} jobs {bad}" for bad in ("ran_twice", "never_ran", "refused") if found.get(bad)]
    if not found.get("same", True):
        said.append(f"{name}: another number of jobs, dead letters, schedules or keys than before")
    if verdict and verdict["moved"] < found["jobs"] - SCHEDULES:
        said.append(f"{name}: only {verdict['moved']} jobs moved")
    for phase, one in found.get("phases", {}).items():
        if not one["same"]:
            said.append(f"{name}: something is not as it was before the way back from {phase}")
    if felt := found.get("producers"):
        base = felt["before"]["p99"]
        said += [
            f"{name}: producers' p99 is {one['p99']} ms {when}, {one['p99'] / base:.1f} times as much as before"
            for when, one in felt.items()
            if one["p99"] > _SLOWER * base
        ]
    return said


@contextmanager
def _stores(place: str) -> Iterator[tuple[list[Way], Way, Way]]:
    """The long way, the short one, and one to go back from."""
    with ExitStack() as stack:
        servers: list[Postgres | Valkey] = [Postgres(None), Postgres(None), Valkey(), Valkey()]
        for server in servers:
            stack.callback(server.close)
            server.start()
        plain, under, gives, leaves = servers
        first, last = f"sqlite:///{place}/first.db", f"sqlite:///{place}/last.db"
        composed = Streams(pg=under.url(), valkey=gives.url()).url
        with_schema = [f"{plain.url()}?schema={name}" for name in ("long", "short", "back")]
        long = [
            Way("SQLite to PostgreSQL", first, with_schema[0]),
            Way("PostgreSQL to Streams", with_schema[0], composed),
            Way("Streams to SQLite", composed, last),
        ]
        short = Way("Valkey to PostgreSQL", leaves.url(), with_schema[1])
        yield long, short, Way("SQLite to PostgreSQL", f"sqlite:///{place}/back.db", with_schema[2])


async def run(jobs: int, place: str) -> list[dict[str, Any]]:
    """All of it."""
    with _stores(place) as (long, short, back):
        found = [await roll_back(back, max(500, jobs // 10))]
        found += await travel(long, jobs)
        return found + await travel([short], jobs)


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.migrate", description=__doc__)
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--rewrite", action="store_true", help="the results file begins with this run")
    given = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        found = asyncio.run(run(given.jobs, place))
        machine = facts(Path(place))
    said = [text for one in found for text in problems(one)]
    lines = [{"kind": "run", "machine": machine, "seconds": round(time.perf_counter() - began), "problems": said}]
    lines += [{"kind": "way", **one} for one in found]
    with OUTPUT.open("w" if given.rewrite else "a") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    print("\n".join(said or ["lost 0, doubled 0, rolled back from every phase, producers as they should be"]))
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
