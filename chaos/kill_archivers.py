"""SIGKILL archivers, which compact the vault too, at every step of their work: each end of a job is in the vault once,
and none is missing."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path
from uuid import UUID

from chaos.outcome import Outcome
from chaos.stores import opened
from headrace import App, connect
from headrace.payloads.object_url import parse
from headrace.payloads.objects import Objects
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Row, Settlement
from headrace.types import JobState
from headrace.vault.catalog import Catalog

PAGE = 20
_ENDS = (JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED)
_MINUTE = 60_000_000
STEPS = {"documents.get", "documents.put", "archive.ended", "objects.create", "objects.delete"}


async def run(folder: Path, *, deaths: int, seed: int, backend: str, jobs: int = 1_500) -> Outcome:
    """Archive ``jobs`` that ended within the last three hours, by processes of which so many die."""
    began = time.monotonic()
    vault = f"file://{folder}/vault"
    with opened(backend, folder) as store:
        app = App(connect(store.url, vault={"url": vault, "page": PAGE}))
        async with app:
            ended = await _end(await app.client.backend(), jobs)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "chaos.archive_scene", store.url, vault, str(PAGE), str(deaths), str(seed),
                stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parent.parent,
            )  # fmt: skip
            told, _ = await process.communicate()
            steps = Counter(json.loads(told)) if process.returncode == 0 else Counter()
            before = (await app.vault.verify()).jobs
            while await app.vault.archive():
                pass
            verified = await app.vault.verify()
        integrity = store.integrity()
    archived = await _archived(vault)
    twice = sum(number - 1 for number in archived.values())
    spared = [f"{when} {step}" for step in STEPS for when in ("before", "after") if not steps[f"{when} {step}"]]
    said = (
        (process.returncode != 0, "the archivers ended in another way"),
        (bool(twice), f"{twice} ends are in the vault twice"),
        (
            set(archived) != ended,
            f"{len(ended - set(archived))} ends are missing, {len(set(archived) - ended)} are odd",
        ),
        (bool(verified.problems), f"the vault says {verified.problems[:3]}"),
        (bool(spared), f"nobody died {', '.join(spared)}"),
        (integrity != "ok", f"the store's own check says {integrity}"),
    )
    problems = [text for bad, text in said if bad]
    return Outcome(
        scenario="kill_archivers",
        backend=backend,
        asked={"jobs": jobs, "processes": deaths},
        reached={
            "deaths": sum(steps.values()), "by step": dict(sorted(steps.items())),
            "ends archived by those that died": before, "ends archived": sum(archived.values()),
            "twice": twice, "integrity": integrity, "seconds": round(time.monotonic() - began, 1),
        },
        ok=not problems,
        seed=seed,
        problems=problems,
    )  # fmt: skip


async def _end(backend: Backend, jobs: int) -> set[tuple[str, int]]:
    """Let jobs end in all ways, during the last hours: their ids and epochs."""
    found = set()
    now = await backend.now()
    for number in range(0, jobs, 100):
        at = now - 190 * _MINUTE + number * 180 * _MINUTE // jobs
        rows = [Row((number + n + 1).to_bytes(16), "q", "t", {"parameters": b"{}"}) for n in range(100)]
        await backend.insert(rows, at)
        leased = (await backend.claim(Claim("h", ("q",), 100, 10**12), at)).jobs
        ends = [Settlement(job.id, job.epoch, "h", _ENDS[n % 3], error=b"\\x90") for n, job in enumerate(leased)]
        await backend.finish(ends, at)
        found |= {(str(UUID(bytes=job.id)), job.epoch) for job in leased}
    return found


async def _archived(vault: str) -> Counter[tuple[str, int]]:
    """How often each end is in the vault."""
    catalog = Catalog(Objects(parse(vault)))
    found: Counter[tuple[str, int]] = Counter()
    for file in await catalog.files():
        table = await catalog.load(file, ("id", "epoch"))
        found.update(zip(table.column("id").to_pylist(), table.column("epoch").to_pylist(), strict=True))
    return found
