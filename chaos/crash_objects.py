"""Processes die at every step between an object store and a store: no reference ever leads nowhere, and after the grace
no object is left that nobody refers to."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from servers.seaweedfs import SeaweedFS

from chaos.object_scene import DIED, POINTS, Scene, Seen
from chaos.outcome import Outcome
from chaos.stores import opened

_TRIES = 5
"""Processes for each death, at most."""


class Answer(msgspec.Struct):
    """What became of one process."""

    code: int
    seen: Seen | None


async def run(folder: Path, *, crashes: int, seed: int, backend: str = "sqlite") -> Outcome:
    """``crashes`` deaths at each step, on a real S3 server. After a process that does not come there comes another."""
    rng = Random(seed)
    began = time.monotonic()
    deaths: Counter[str] = Counter()
    tries: Counter[str] = Counter()
    codes: Counter[int] = Counter()
    dangling = survived = jobs = 0
    (folder / "now").write_text(str(time.time_ns() // 1_000))
    objects = SeaweedFS()
    try:
        await asyncio.to_thread(objects.start)
        with opened(backend, folder) as store:
            zygote = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "chaos.object_scene",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                common: dict[str, Any] = {
                    "url": store.url, "objects": objects.url(f"chaos/{seed}"), "folder": str(folder)
                }  # fmt: skip
                while todo := [p for p in POINTS if deaths[p] < crashes and tries[p] < _TRIES * crashes]:
                    for point in rng.sample(todo, len(todo)):
                        tries[point] += 1
                        scene = Scene(**common, seed=rng.getrandbits(32), point=point, number=rng.choice((1, 1, 2)))
                        answer = await _played(zygote, scene)
                        codes[answer.code] += 1
                        deaths[point] += answer.code == DIED
                        survived += answer.code == 0
                        dangling += answer.seen.dangling if answer.seen else 0
                        jobs += answer.seen.jobs if answer.seen else 0
                last = await _played(zygote, Scene(**common, seed=0, point="the end"))
            finally:
                assert zygote.stdin is not None
                zygote.stdin.close()
                await zygote.wait()
            integrity = store.integrity()
    finally:
        objects.close()
    end = last.seen or Seen(dangling=-1, orphans=-1)
    wrong = {code: count for code, count in codes.items() if code not in (0, DIED) and count}
    spared = [f"{point} ({deaths[point]})" for point in POINTS if deaths[point] < crashes]
    said = (
        (bool(dangling or end.dangling), f"{dangling + end.dangling} references led nowhere, or elsewhere"),
        (bool(end.orphans), f"{end.orphans} objects are left that nobody refers to"),
        (bool(wrong), f"processes ended in another way: {wrong}"),
        (bool(spared), f"fewer than {crashes} died at: {'; '.join(spared)}"),
        (integrity != "ok", f"the store's own check says {integrity}"),
    )
    problems = [text for bad, text in said if bad]
    return Outcome(
        scenario="crash_objects",
        backend=backend,
        asked={"crashes at each step": crashes, "steps": len(POINTS)},
        reached={
            "deaths": sum(deaths.values()),
            "fewest deaths at a step": min(deaths[point] for point in POINTS),
            "processes that did not come there": survived,
            "sections read": jobs,
            "dangling references": dangling + end.dangling,
            "orphans after the grace": end.orphans,
            "integrity": integrity,
            "seconds": round(time.monotonic() - began, 1),
        },
        ok=not problems,
        seed=seed,
        problems=problems,
    )


async def _played(zygote: asyncio.subprocess.Process, scene: Scene) -> Answer:
    assert zygote.stdin is not None
    assert zygote.stdout is not None
    zygote.stdin.write(msgspec.json.encode(scene) + b"\n")
    await zygote.stdin.drain()
    return msgspec.json.decode(await zygote.stdout.readline(), type=Answer)
