"""SIGKILL workers that share the tenants of a queue: each tenant is with one of them at a time, whoever dies."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from chaos.books import disagreements
from chaos.findings import Findings
from chaos.fleet import Fleet
from chaos.jobs import records_of, until_done
from chaos.kill_workers import Again, feed
from chaos.ledger import Ledger
from chaos.lines import Lines
from chaos.outcome import Outcome
from chaos.stores import opened
from chaos.tokens import Tokens
from chaos.worker import LEASE, make_app
from headrace import App, NewJob
from headrace.errors import Unavailable
from headrace.limits.policies import TenantInfo
from headrace.seam.records import JobId

QUEUE = "chaos"
HEAVY = "heavy"
LOAD = 100
"""The heavy tenant has so many times the jobs of any other."""
LIMIT, HEAVY_LIMIT = 3, 6
"""Jobs of a tenant that may run at once."""
RULES = {"tenant_workers": 1, "tenant_running": LIMIT, "tenant_batch": 10}
GROUPED = 8
"""One job of so many is in its tenant's group."""
SINGLE = 10
"""One job of so many comes by itself, between those of others."""
GAP = 0.005
"""Seconds between such jobs."""
LOOK = 0.5
"""Seconds between looks at what the store says."""


class Share(Struct, frozen=True):
    """Whose job it is, and with whom it takes turns."""

    tenant: str
    group: str | None


async def run(
    folder: Path,
    *,
    jobs: int,
    tenants: int,
    kills: int,
    processes: int,
    seed: int,
    backend: str = "postgres",
    seconds: float = 0.02,
    lease: float = LEASE,
    budget: float = 600.0,
    rules: Mapping[str, Any] = RULES,
) -> Outcome:
    """Enqueue ``jobs`` of so many tenants while ``processes`` workers run and ``kills`` of them are killed; then check
    that ``RULES`` were kept. Other ``rules`` than these show that it would be seen if they were not."""
    rng = random.Random(seed)
    ledger_folder = folder / "ledger"
    ledger_folder.mkdir()
    shares = _shares(jobs, tenants, rng)
    with opened(backend, folder) as store:
        app = make_app(store.url)
        async with app:
            await app.policies.set(QUEUE, **rules)
            if "tenant_running" in rules:
                await app.policies.limit_tenant(QUEUE, HEAVY, running=HEAVY_LIMIT)
            watch = Watch(app, tenants)
            fleet = Fleet(store.url, ledger_folder, size=processes, seconds=seconds, rng=rng, lease=lease, witness=True)
            watching = asyncio.ensure_future(watch.run())
            try:
                task: Any = app.tasks["work"]
                made = [
                    task.options(tenant=share.tenant, group=share.group).job(number)
                    for number, share in enumerate(shares)
                ]
                began = time.monotonic()
                (ids, _), single = await asyncio.gather(
                    feed(app, fleet, made[len(made) // SINGLE :], kills, rng, within=0.9),
                    _trickle(app, made[: len(made) // SINGLE]),
                )
                ids = single + ids
                drained = await until_done(app, began + budget)
                took = time.monotonic() - began
                crashed = fleet.crashed()
            finally:
                watching.cancel()
                [blind] = await asyncio.gather(watching, return_exceptions=True)
                codes = fleet.stop()
            records = await records_of(app, ids)
            left = await _left(app, tenants, _lines(ids, shares))
            books = await disagreements(app)
        integrity = store.integrity()
    ledger = Ledger(ledger_folder)
    found = Findings(ids, records, ledger)
    again = Again(ledger, fleet)
    tokens = Tokens(ledger, {job_id.hex(): share.tenant for job_id, share in zip(ids, shares, strict=True)})
    lines = _lines(ids, shares)
    epochs = {record.id: record.epoch for record in records if record is not None}
    early = Lines(ledger, epochs).early(lines.values())
    said = (
        *judge(tokens, watch.seen),
        (early, f"{early} jobs of groups were started before the one in front of them had ended"),
        (left, f"when all was done, {left}"),
        (not watch.looks, "nobody looked at the store"),
        (not isinstance(blind, asyncio.CancelledError), f"nobody looked at the store to the end: {blind!r}"),
        (not drained, "not everything was done in time"),
        (crashed, f"{crashed} workers ended by themselves: {fleet.errors()[-2000:]}"),
        (fleet.kills < kills, f"only {fleet.kills} of {kills} kills"),
        (integrity != "ok", f"the store's own check says {integrity}"),
    )
    problems = found.problems() + again.problems() + books + [text for bad, text in said if bad]
    return Outcome(
        scenario="kill_holders",
        backend=store.name,
        asked={"jobs": len(shares), "tenants": tenants, "kills": kills, "processes": processes, **rules},
        reached={
            **found.figures(),
            "kills": fleet.kills,
            **again.figures(),
            "leases": tokens.leases,
            "tenants that went to another worker": tokens.passed_on,
            "token overlaps": tokens.overlaps(1),
            "most running of a light tenant": _most_light(tokens.running),
            "most running of the heavy tenant": tokens.running.get(HEAVY, 0),
            "groups": len(lines),
            "jobs in them": sum(map(len, lines.values())),
            "out of order": early,
            "looks at the store": watch.looks,
            "drained": drained,
            "seconds": round(took, 1),
            "integrity": integrity,
            "exit codes": sorted(set(codes)),
        },
        ok=not problems,
        seed=seed,
        problems=problems,
    )


def _shares(jobs: int, tenants: int, rng: random.Random) -> list[Share]:
    """About so many jobs, mixed: the same number for every tenant, and ``LOAD`` times that for the heavy one. The first
    are those that come singly; they are in no group, as nobody knows when they come."""
    each = max(1, round(jobs / (tenants - 1 + LOAD)))
    counts = {f"light-{number}": each for number in range(tenants - 1)} | {HEAVY: each * LOAD}
    names = [name for name, count in counts.items() for _ in range(count)]
    rng.shuffle(names)
    single = len(names) // SINGLE
    seen: Counter[str] = Counter()
    found = [Share(name, None) for name in names[:single]]
    for name in names[single:]:
        found.append(Share(name, name if seen[name] % GROUPED == 0 else None))
        seen[name] += 1
    return found


async def _trickle(app: App, jobs: Sequence[NewJob]) -> list[JobId]:
    """One by one: whoever deals with them does so among other things."""
    ids = []
    for job in jobs:
        ids.append((await app.client.enqueue(job)).id)
        await asyncio.sleep(GAP)
    return ids


class Seen(Struct):
    """The most that the store has ever told of a tenant."""

    holders: int = 0
    light: int = 0
    heavy: int = 0


class Watch:
    """Looks at the tenants while workers come and go."""

    def __init__(self, app: App, tenants: int) -> None:
        self._app = app
        self._tenants = tenants
        self.seen = Seen()
        self.looks = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with suppress(Unavailable):
                for tenant in await self._app.policies.tenants(QUEUE, limit=self._tenants):
                    self._note(tenant)
                self.looks += 1
            await asyncio.sleep(LOOK)

    def _note(self, tenant: TenantInfo) -> None:
        seen = self.seen
        seen.holders = max(seen.holders, len(tenant.workers))
        if tenant.tenant == HEAVY:
            seen.heavy = max(seen.heavy, tenant.running)
        else:
            seen.light = max(seen.light, tenant.running)


def judge(tokens: Tokens, seen: Seen) -> list[tuple[bool, str]]:
    """What the leases of the workers say, and what the store itself said meanwhile."""
    overlaps = tokens.overlaps(1)
    light, heavy = _most_light(tokens.running), tokens.running.get(HEAVY, 0)
    return [
        (overlaps > 0, f"{overlaps} times two workers had jobs of one tenant"),
        (light > LIMIT, f"{light} jobs of a light tenant ran at once, where {LIMIT} may"),
        (heavy > HEAVY_LIMIT, f"{heavy} jobs of the heavy tenant ran at once, where {HEAVY_LIMIT} may"),
        (seen.holders > 1, f"the store told of {seen.holders} workers with jobs of one tenant"),
        (seen.light > LIMIT, f"the store told of {seen.light} running jobs of a light tenant, where {LIMIT} may"),
        (seen.heavy > HEAVY_LIMIT, f"the store told of {seen.heavy} of the heavy one, where {HEAVY_LIMIT} may"),
    ]


def _most_light(running: Mapping[str, int]) -> int:
    return max((count for tenant, count in running.items() if tenant != HEAVY), default=0)


def _lines(ids: Sequence[JobId], shares: Sequence[Share]) -> dict[str, list[JobId]]:
    """The jobs of each group, in the order in which they came."""
    lines: dict[str, list[JobId]] = defaultdict(list)
    for job_id, share in zip(ids, shares, strict=True):
        if share.group is not None:
            lines[share.group].append(job_id)
    return lines


async def _left(app: App, tenants: int, groups: Iterable[str]) -> str:
    """What the store still knows of jobs under way or in line; nothing, as there are none."""
    busy = [each.tenant for each in await app.policies.tenants(QUEUE, limit=tenants) if each.running or each.workers]
    if busy:
        return f"{len(busy)} tenants still counted as busy, {busy[0]!r} first"
    policies = (await app.client.backend()).policies
    assert policies is not None
    states = [await policies.group(QUEUE, name) for name in groups]
    lined = [state.group for state in states if state.called or state.waiting]
    return f"{len(lined)} groups still had jobs, {lined[0]!r} first" if lined else ""
