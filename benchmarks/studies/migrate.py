"""A store moves to another one under load: how long it takes, what producers feel, and that nothing is lost or doubled.

``python -m benchmarks.studies.migrate`` moves 200,000 jobs (delayed, with keys, in groups, dead letters) and schedules
from SQLite to PostgreSQL, on to PostgreSQL with Valkey, and back to SQLite; then others from Valkey to PostgreSQL.
Producers and workers never stop. Each command is a process of its own, and is killed again and again. Before, a tenth
of the jobs is rolled back from every phase, on the way from SQLite and on that to PostgreSQL with Valkey. What
producers feel is compared with the slower of the two stores while nothing moves. ``--jobs 2000`` is a small run. The
last line is a verdict.
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
_LIVES = 0.25
"""Seconds that the first process of a command lives; each lives twice as long as the one before."""
_TRIES = 30
_CALM = 5.0
_SLOWER = 3.0
"""By how much producers may become slower, at the 99th percentile."""
_PHASES = ("shadow", "dual", "ready", "cutover", "moved")
_COMMANDS = ("start", "cutover", "finish")


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


async def _opened(way: Way) -> Moving:
    store = open_backend(way.url)
    assert isinstance(store, Moving)
    await store.open()
    return store


async def _phase(store: Moving) -> str | None:
    transfer = await passage.read(store.old)
    return None if transfer is None else transfer.phase.value


async def _insist(way: Way, store: Moving, *words: str) -> int:
    """Run a command of ``headrace transfer``, and kill it again and again, until it has ended by itself: how often it
    was killed."""
    kills = 0
    for _ in range(_TRIES):
        process = await _headrace("transfer", *words, "--url", way.url)
        try:
            async with asyncio.timeout(_LIVES * 2**kills):
                if await process.wait() == 0:
                    return kills
        except TimeoutError:
            process.kill()
            await process.wait()
            kills += 1
        if words[0] == "rollback" and await _phase(store) is None:
            return kills  # it was killed when all was done
    raise RuntimeError(f"transfer {' '.join(words)} failed {_TRIES} times")


async def _kill_in(way: Way, store: Moving, phase: str) -> None:
    """Begin a cutover, and kill it in that phase."""
    process = await _headrace("transfer", "cutover", "--yes", "--url", way.url)
    async with asyncio.timeout(60):
        while await _phase(store) in ("shadow", "dual") or (await _phase(store) == "ready" and phase != "ready"):
            await asyncio.sleep(0.02)
    process.kill()
    await process.wait()


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
        await _insist(way, store, "start", *(["--dual"] if phase == "dual" else []))
        if phase in ("ready", "cutover"):
            await _kill_in(way, store, phase)
        elif phase == "moved":
            await _insist(way, store, "cutover", "--yes")
        reached = await _phase(store)
        kills = await _insist(way, store, "rollback", "--yes")
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
        kills = {"start": await _insist(way, store, "start", "--dual")}
        await asyncio.sleep(_CALM)
        copying = load.felt()
        kills["cutover"] = await _insist(way, store, "cutover", "--yes")
        moving, verdict = load.felt(), await _verify(store)
        load.failed()
        kills["finish"] = await _insist(way, store, "finish", "--yes")
        seconds = round(time.perf_counter() - began, 1)
        same = await load.held(store, jobs) == before
        load.felt()
        await asyncio.sleep(_CALM)
        after = load.felt()
        found.append(_shown({
            "way": way.name, "jobs": jobs, "seconds": seconds, "kills": kills, "verdict": verdict, "same": same,
            "producers": {"before": calm, "with copies": copying, "while jobs move": moving, "after": after},
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
    if "kills" in found:
        said += [f"{name}: {word} was never killed" for word in _COMMANDS if not found["kills"].get(word)]
    return said + _of_ways_back(found) + _of_producers(found)


def _of_ways_back(found: dict[str, Any]) -> list[str]:
    if "phases" not in found:
        return []
    name, phases = found["way"], found["phases"]
    said = [f"{name}: there was no way back from {phase}" for phase in _PHASES if phase not in phases]
    for phase, one in phases.items():
        if not one["same"]:
            said.append(f"{name}: something is not as it was before the way back from {phase}")
        if one["from"] != phase:
            said.append(f"{name}: the way back from {phase} began in {one['from']}")
        if not one["kills"]:
            said.append(f"{name}: the way back from {phase} was never killed")
    return said


def _of_producers(found: dict[str, Any]) -> list[str]:
    felt = found.get("producers", {})
    calm = max((felt[when]["p99"] for when in ("before", "after") if when in felt), default=0.0)
    return [
        f"{found['way']}: producers' p99 is {felt[when]['p99']} ms {when}, "
        f"{felt[when]['p99'] / calm:.1f} times as much as with the slower store alone"
        for when in ("with copies", "while jobs move")
        if when in felt and felt[when]["p99"] > _SLOWER * calm
    ]


@contextmanager
def _stores(place: str) -> Iterator[tuple[list[Way], Way, list[Way]]]:
    """The long way, the short one, and those to go back from."""
    with ExitStack() as stack:
        servers = (Postgres(None), Postgres(None), Valkey(), Valkey())
        for server in servers:
            stack.callback(server.close)
            server.start()
        plain, under, gives, leaves = servers
        first, last = f"sqlite:///{place}/first.db", f"sqlite:///{place}/last.db"
        composed, returned = (
            Streams(pg=f"{under.url()}?schema={name}", valkey=gives.url()).url for name in ("long", "back")
        )
        with_schema = [f"{plain.url()}?schema={name}" for name in ("long", "short", "back", "again")]
        long = [
            Way("SQLite to PostgreSQL", first, with_schema[0]),
            Way("PostgreSQL to Streams", with_schema[0], composed),
            Way("Streams to SQLite", composed, last),
        ]
        short = Way("Valkey to PostgreSQL", leaves.url(), with_schema[1])
        yield (
            long,
            short,
            [
                Way("SQLite to PostgreSQL", f"sqlite:///{place}/back.db", with_schema[2]),
                Way("PostgreSQL to Streams", with_schema[3], returned),
            ],
        )


async def run(jobs: int, place: str) -> list[dict[str, Any]]:
    """All of it."""
    with _stores(place) as (long, short, back):
        found = [await roll_back(way, max(500, jobs // 10)) for way in back]
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
