"""PostgreSQL and Valkey together, under load: Valkey is flushed, killed and stopped, PostgreSQL is killed, so are
workers, and the object store is away for a minute. What Valkey forgets runs again; nothing is lost, no stale outcome
counts, nothing that may be started once is started twice, and groups keep their order."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from servers.postgres import Postgres
from servers.seaweedfs import SeaweedFS
from servers.valkey import Valkey

from chaos.findings import Findings
from chaos.fleet import Fleet
from chaos.jobs import records_of, until_done
from chaos.ledger import Ledger
from chaos.load import Load
from chaos.outcome import Outcome
from chaos.stores import PostgresStore, ValkeyStore, postgres, valkey
from chaos.strict import StrictJobs
from chaos.worker import LEASE, make_app
from headrace import App, Streams
from headrace.errors import Unavailable

EACH_ROUND = {"flush": 1.0, "kill valkey": 2.0, "hang valkey": 0.5, "kill postgres": 1.0, "kill worker": 5.0}
"""How often each happens, for every round."""
MAX_LOST = 20
STRICT = 0.3
"""Seconds between two batches of jobs that may be started once, and of groups."""
_LOOK = 0.25
"""Seconds between two looks at the windows."""
OPEN_SHARE = "window open, of looks that were answered"
QUEUE = "chaos"
LEAST_OPEN = 0.1
"""Of these looks. Else a run would say nothing of windows: each loss of a worker closes one for some seconds."""
WEIGHT = 4_500
"""Bytes of one job in fifty, which go to the object store."""


async def run(
    folder: Path,
    *,
    rounds: int,
    processes: int,
    seed: int,
    away: float = 60.0,
    rate: int = 300,
    seconds: float = 0.01,
    lease: float = LEASE,
    pause: float = 2.5,
    budget: float = 400.0,
) -> Outcome:
    """Enqueue ``rate`` jobs a second while ``processes`` workers run, everything above happens ``rounds`` times, and
    the object store is gone for ``away`` seconds. ``pause``: seconds between two troubles. ``budget``: how long the
    jobs that are left may take in the end."""
    rng = random.Random(seed)
    (folder / "ledger").mkdir()
    objects = SeaweedFS()
    try:
        await asyncio.to_thread(objects.start)
        with postgres(folder) as keeps, valkey(folder, "everysec") as gives:
            scene = _Scene(keeps, gives, objects, folder / "ledger", rng)
            given = {"size": processes, "seconds": seconds, "lease": lease}
            found, reached, problems = await scene.play(rounds, rate, away, pause, budget, given)
    finally:
        objects.close()
    problems += found.problems() + said(reached, rounds)
    return Outcome(
        scenario="lose_windows",
        backend="streams",
        asked={"rounds": rounds, "processes": processes, "jobs a second": rate, "seconds without objects": away},
        reached=reached,
        ok=not problems,
        seed=seed,
        problems=problems,
    )


def times(rounds: int) -> dict[str, int]:
    """How often each trouble is to happen."""
    return {name: max(1, round(each * rounds)) for name, each in EACH_ROUND.items()}


def said(reached: dict[str, Any], rounds: int) -> list[str]:
    """What is wrong with a run, besides what became of its jobs."""
    missing = [
        f"{name}: expected {asked} times, got {reached[name]}"
        for name, asked in {**times(rounds), "objects away": 1}.items()
        if reached[name] != asked
    ]
    return missing + _faults(reached)


def _faults(reached: dict[str, Any]) -> list[str]:
    faults = (
        (reached[OPEN_SHARE] < LEAST_OPEN, f"the window was open in {reached[OPEN_SHARE]:.0%} of looks"),
        (reached["integrity"] != "ok", f"PostgreSQL's own check says {reached['integrity']}"),
        (not reached["drained"], "not all was done in time"),
        (reached["enqueues refused"] > 0, f"{reached['enqueues refused']} enqueues were refused"),
        (reached["consumers in the end"] > 10, f"{reached['consumers in the end']} consumers stayed"),
    )
    return [text for bad, text in faults if bad]


class _Scene:
    """Three servers, and what happens to them."""

    def __init__(
        self, keeps: PostgresStore, gives: ValkeyStore, objects: SeaweedFS, ledger: Path, rng: random.Random
    ) -> None:
        self._keeps, self._gives, self._objects = keeps, gives, objects
        self._ledger = ledger
        self._rng = rng
        self.done: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        """In which mode the window was, each time that somebody looked."""

    async def play(
        self, rounds: int, rate: int, away: float, pause: float, budget: float, given: dict[str, Any]
    ) -> tuple[Findings, dict[str, Any], list[str]]:
        """All of it, and what came of it."""
        url = Streams(pg=self._keeps.url, valkey=self._gives.url, window=500).url
        places = {"url": url, "objects": self._objects.url("windows", timeout="2s")}
        app = make_app(**places, lease=given["lease"], lined=True)
        async with app:
            fleet = Fleet(folder=self._ledger, rng=self._rng, max_lost=MAX_LOST, lined=True, **places, **given)
            load = Load(app, rate, heavy=WEIGHT)
            strict = StrictJobs(app, steps=1)
            began = time.monotonic()
            watching = asyncio.create_task(self._watch(app, fleet))
            try:
                await self._trouble(fleet, load, strict, rounds, away, pause)
                over = time.monotonic()
                drained = await until_done(app, over + budget)
                seconds = round(over - began, 1), round(time.monotonic() - over, 1)
            finally:
                watching.cancel()
                codes = fleet.stop()
            ids = [*load.acknowledged, *strict.ids]
            records = await records_of(app, ids)
            windows = (await app.client.backend()).windows
            consumers = 0 if windows is None else max((one.consumers for one in await windows.look()), default=0)
        ledger = Ledger(self._ledger)
        found, figures, problems = strict.judge(ids, records, ledger, asked=load.asked, forgets=True)
        reached = found.figures() | figures | {name: self.done[name] for name in (*EACH_ROUND, "objects away")} | {
            OPEN_SHARE: round(self.seen["open"] / max(1, self.seen.total()), 2),
            "workers that ended by themselves": self.done["start worker again"],
            "leases lost": ledger.count("lease_lost"),
            "runs beyond one for each job": ledger.count("start") - found.jobs,
            "enqueues that were given up": load.given_up,
            "enqueues refused": len(load.refused),
            "consumers in the end": consumers,
            "integrity": self._keeps.integrity(),
            "drained": drained,
            "seconds of trouble": seconds[0],
            "seconds to drain": seconds[1],
            "exit codes": sorted(set(codes)),
        }  # fmt: skip
        return found, reached, problems

    async def _watch(self, app: App, fleet: Fleet) -> None:
        windows = (await app.client.backend()).windows
        assert windows is not None
        while True:
            self.done["start worker again"] += fleet.replace_dead()
            with suppress(Unavailable):
                self.seen.update(one.mode for one in await windows.look([QUEUE]))
            await asyncio.sleep(_LOOK)

    async def _trouble(
        self, fleet: Fleet, load: Load, strict: StrictJobs, rounds: int, away: float, pause: float
    ) -> None:
        asked = times(rounds)
        kills = asked.pop("kill worker")
        others = [name for name, number in asked.items() for _ in range(number)]
        self._rng.shuffle(others)
        async with asyncio.TaskGroup() as group:
            producers = [*load.start(group), group.create_task(strict.produce(STRICT))]
            without = group.create_task(self._take_objects_away(away))
            killing = group.create_task(self._kill_workers(fleet, kills, 2 * pause * len(others) / kills))
            for trouble in others:
                await asyncio.sleep(pause)
                await self._make(trouble, self._keeps.server, self._gives.server)
                self.done[trouble] += 1
            await asyncio.wait([without, killing])
            await asyncio.sleep(pause)
            load.enough = strict.enough = True
            await asyncio.wait(producers)

    async def _take_objects_away(self, seconds: float) -> None:
        await asyncio.sleep(self._rng.random() * seconds)
        await asyncio.to_thread(self._objects.kill)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self._objects.start)
        self.done["objects away"] += 1

    async def _kill_workers(self, fleet: Fleet, kills: int, pause: float) -> None:
        while len(fleet.killed) < kills:
            await asyncio.sleep(pause * self._rng.random() * 2)
            fleet.kill_one()
            self.done["kill worker"] = len(fleet.killed)

    async def _make(self, trouble: str, keeps: Postgres, gives: Valkey) -> None:
        match trouble:
            case "flush":
                await asyncio.to_thread(gives.call, "FLUSHALL")
            case "kill valkey":
                await asyncio.to_thread(gives.kill)
                await asyncio.sleep(self._rng.random() * 2)
                await asyncio.to_thread(gives.start)
            case "hang valkey":
                await asyncio.to_thread(gives.freeze)
                await asyncio.sleep(2 + 2 * self._rng.random())
                gives.thaw()
            case _:
                await asyncio.to_thread(keeps.kill)
                await asyncio.sleep(self._rng.random() * 2)
                await asyncio.to_thread(keeps.start)
