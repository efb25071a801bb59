"""What the rules are called with: records of the waist, drawn from the pools and from the world as it is."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, sampled_from
from msgspec.structs import replace

from headrace.seam.policy import STORE, Policy, QueuePause, Rate, TenantLimit
from headrace.seam.records import (
    Beat,
    Cancel,
    Change,
    Claim,
    Delete,
    Hold,
    JobId,
    JobKey,
    Reap,
    Record,
    Reprioritise,
    Requeue,
    Reschedule,
    Row,
    Selector,
    Settlement,
    SweepClause,
    SweepTarget,
)
from headrace.testing.machine import pools
from headrace.testing.machine.world import Fence, World
from headrace.types import SECTIONS, JobState

T = TypeVar("T")


# Hypothesis draws bytes evenly, and large integers anything but.
_dice = st.binary(min_size=4, max_size=4)


def _mixed(*pool: Sequence[Any]) -> SearchStrategy[list[Any]]:
    """One of each pool at the price of a single draw: drawing is what a sequence spends most of its time on."""

    def split(dice: bytes) -> list[Any]:
        number = int.from_bytes(dice)
        picked = []
        for choices in pool:
            number, index = divmod(number, len(choices))
            picked.append(choices[index])
        return picked

    assert prod(map(len, pool)) < 2**28
    return _dice.map(split)


flags = sampled_from(pools.FLAGS)
seldom = sampled_from(pools.SELDOM)
pauses = sampled_from(pools.PAUSES)
queues = sampled_from(pools.QUEUES)
limits = sampled_from(pools.LIMITS)
sections = st.frozensets(sampled_from((*SECTIONS, "result", "error")))

_runners = st.runner()
_indexes = st.integers(0, 255)
_row = (pools.TIMINGS, pools.TITLES, pools.LOADS, pools.IDS, pools.QUEUES, pools.PRIORITIES)
_plain_rows = _mixed(*_row, pools.SOME_KEYS)
_keyed_rows = _mixed(*_row, pools.KEYS, pools.FLAGS, pools.FLAGS, pools.KEY_UNTIL)
_replaces = sampled_from(pools.REPLACES)
_progresses = sampled_from((None, None, None, b"", b"\x00half"))
_fences = _mixed(pools.FAULTS, pools.IDS, pools.HOLDERS)
_fence_counts = sampled_from(range(4))
_outcomes = _mixed(
    pools.ENDS, pools.PATCHES, pools.RESULTS, pools.REASONS, pools.DELAYS, pools.COUNTS, pools.SELDOM, pools.SELDOM
)
_claims = _mixed(pools.HOLDERS, pools.LINE_UPS, pools.CLAIM_LIMITS, pools.LEASES, pools.WANTS, pools.LOST_BELOW)
_beats = _mixed(pools.HOLDERS, pools.LEASES, pools.LEASES, pools.BEATS)
_reaps = _mixed(range(3), pools.SPREADS, pools.REAPS)
_filters = _mixed(pools.LIMITS, pools.NARROWINGS, pools.SELDOM)
_selectors = _mixed(pools.SELDOM, pools.NARROWINGS, pools.SELDOM)
_some_ids = st.lists(_indexes, max_size=4)
_some_keys = st.lists(_mixed(pools.QUEUES, pools.KEYS[:3]), max_size=4)
_changes = _mixed(pools.CHANGES, pools.FLAGS)
_revisits = _mixed(("hold", "requeue displaced", "requeue", "requeue"), (0, 5, pools.HOUR))
_names = _mixed(pools.SELDOM, pools.QUEUES, pools.KEYS)
_clauses = _mixed(pools.PLACES, pools.BOUNDS, pools.LIMITS, pools.SELDOM)
_caps = _mixed(pools.CAPS, pools.RATES, pools.CAPS, pools.RATES, pools.TASK_RATES, pools.HOLDER_COUNTS)
_orders = _mixed(pools.QUEUES, pools.CHUNKS, pools.AGEINGS, pools.GROUP_TURNS, pools.DEPTHS, pools.VERSIONS)
_limits = _mixed(pools.GOVERNED, pools.TENANTS, pools.CAPS, pools.RATES)
_pauses = _mixed(pools.GOVERNED, pools.TENANTS, pools.TASKS, pools.FLAGS, pools.FLAGS, pools.LASTS)
_rulings = sampled_from(("policy", "policy", "policy", "store", "limit", "pause", "pause"))
_queue_pauses = _mixed(pools.QUEUES, pools.SELDOM, pools.LASTS)
_instants = _mixed(pools.FLAGS, pools.NUDGES, pools.STEPS)


def _world(draw: DrawFn) -> World:
    world = draw(_runners).world
    assert isinstance(world, World)
    return world


def _pick(draw: DrawFn, pool: Sequence[T]) -> T:
    """One item of a pool that differs from draw to draw; a strategy for each would cost too much."""
    return pool[draw(_indexes) % len(pool)]


def _in_ticks(options: dict[str, Any], world: World, *names: str) -> dict[str, Any]:
    return options | {name: options[name] * world.tick for name in names if name in options}


@st.composite
def rows(draw: DrawFn) -> Row:
    """A job to insert, sometimes with a key."""
    *picked, key = draw(_plain_rows)
    return _row_of(_world(draw), *picked, key=key)


@st.composite
def keyed_rows(draw: DrawFn) -> Row:
    """A job to insert, certainly with a key, and often with one that was used before."""
    world = _world(draw)
    *picked, key, hold_failed, used, until = draw(_keyed_rows)
    row = _row_of(world, *picked, key=key, hold_failed=hold_failed, key_until=until, replaces=draw(_replaces))
    if not used or not (pairs := world.used_keys()):
        return row
    queue, key = _pick(draw, pairs)
    return replace(row, queue=queue, key=key)


def _timing(timing: dict[str, Any], world: World) -> dict[str, Any]:
    """In ticks, those of an instant from now on."""
    found: dict[str, Any] = {name: None if ticks is None else ticks * world.tick for name, ticks in timing.items()}
    return found if found.get("run_at") is None else found | {"run_at": found["run_at"] + world.now}


def _row_of(
    world: World,
    timing: dict[str, Any],
    title: dict[str, Any],
    load: dict[str, Any],
    job_id: JobId,
    queue: str,
    priority: int,
    **key: Any,
) -> Row:
    timing = _in_ticks(timing, world, "delay", "run_at", "expires")
    if "run_at" in timing:
        timing["run_at"] += world.now
    return Row(id=job_id, queue=queue, priority=world.priority(priority), **timing, **title, **load, **key)


_rows = rows()
_spawns = st.lists(_rows, min_size=1, max_size=2)


def _fence(draw: DrawFn, world: World) -> Fence:
    """Mostly a current lease; else one that is over, or was never given out."""
    fault, job_id, holder = draw(_fences)
    pool = list(world.fences) if fault == "earlier epoch" else world.live_fences()
    if not pool:
        return Fence(job_id, 1, holder)
    fence = _pick(draw, pool)
    match fault:
        case "later epoch":
            return Fence(fence.id, fence.epoch + 1, fence.holder)
        case "other holder":
            return Fence(fence.id, fence.epoch, holder)
        case "other job":
            return Fence(job_id, fence.epoch, fence.holder)
    return fence


@st.composite
def outcomes(draw: DrawFn) -> Settlement:
    """What may come with the end of a lease that is yet to be named."""
    return _outcome(draw, _world(draw), Fence(pools.UNKNOWN, 0, ""))


@st.composite
def settlements(draw: DrawFn) -> Settlement:
    """An outcome for a known lease."""
    world = _world(draw)
    return _outcome(draw, world, _fence(draw, world))


def _outcome(draw: DrawFn, world: World, fence: Fence) -> Settlement:
    state, patch, result, reason, delay, counts, forget, spawn = draw(_outcomes)
    if "priority" in patch:
        patch = patch | {"priority": world.priority(patch["priority"])}
    if state is JobState.COMPLETED:
        patch = patch | _in_ticks(result, world, "result_ttl")
    return Settlement(
        fence.id,
        fence.epoch,
        fence.holder,
        state,
        reason=reason if state.terminal else "",
        keep=not forget,
        spawn=draw(_spawns) if spawn else (),
        **_timing(delay, world),
        **counts,
        **patch,
    )


@st.composite
def claims(draw: DrawFn) -> Claim:
    """A holder's request for work."""
    holder, queues, limit, lease, want, lost_below = draw(_claims)
    return Claim(holder, queues, limit, lease * _world(draw).tick, want, lost_below)


@st.composite
def beats(draw: DrawFn) -> Beat:
    """A beat with leases of its own, and sometimes of others."""
    world = _world(draw)
    fences = [_fence(draw, world) for _ in range(draw(_fence_counts))]
    holder, lease, ttl, options = draw(_beats)
    given: dict[str, Any] = {"worker": "pod", "queues": pools.QUEUES, "busy": len(fences)}
    if (progress := draw(_progresses)) is not None:
        given["progress"] = {fence.id: progress for fence in fences[:2]}
    return Beat(
        holder=fences[0].holder if fences else holder,
        lease_for=lease * world.tick,
        leases=[(fence.id, fence.epoch) for fence in fences],
        ttl=ttl * world.tick,
        **(given | _in_ticks(options, world, "gap", "at_work")),
    )


@st.composite
def reaps(draw: DrawFn) -> Reap:
    """A reap, by anybody or by a worker."""
    max_lost, spread, options = draw(_reaps)
    given = _in_ticks(options, _world(draw), "gap", "steady")
    return Reap(max_lost=max_lost, spread=spread * _world(draw).tick, **given)


def _filter(draw: DrawFn, world: World) -> Selector:
    """Jobs by their properties, now and then only those above one of them."""
    limit, narrowing, go_on = draw(_filters)
    above = _pick(draw, sorted(world.books)) if go_on and world.books else None
    return Selector(limit=limit, above=above, **_in_ticks(narrowing, world, "older_than"))


def _named(draw: DrawFn, world: World, pool: Sequence[Record] = ()) -> Selector:
    """Jobs by id or by key, some of them twice, now and then narrowed further, or none at all.

    Ids are those of the pool, or any if it is empty.
    """
    narrowed, narrowing, by_key = draw(_selectors)
    narrowing = _in_ticks(narrowing, world, "older_than") if narrowed else {}
    if by_key:
        return Selector(keys=[JobKey(queue, key) for queue, key in draw(_some_keys)], **narrowing)
    ids = [record.id for record in pool] or [*world.books, pools.UNKNOWN]
    return Selector(ids=[ids[index % len(ids)] for index in draw(_some_ids)], **narrowing)


@st.composite
def selectors(draw: DrawFn) -> Selector:
    """Jobs by name, or by their properties."""
    world = _world(draw)
    return _named(draw, world) if draw(flags) else _filter(draw, world)


def _change(draw: DrawFn, world: World) -> tuple[Change, bool]:
    change, applies = draw(_changes)
    match change:
        case Hold(ticks):
            return Hold(ticks * world.tick), applies
        case Reprioritise(wish):
            return Reprioritise(world.priority(wish)), applies
        case Reschedule(delay, run_at):
            return Reschedule(**_timing({"delay": delay, "run_at": run_at}, world)), applies
    return change, applies


@st.composite
def changes(draw: DrawFn) -> Change:
    """A change of jobs: any, and a cancellation as often as all others together."""
    change, cancel = _change(draw, _world(draw))
    return Cancel() if cancel else change


@st.composite
def alterations(draw: DrawFn) -> tuple[Selector, Change]:
    """A change of named jobs: some that it applies to, or some that it does not."""
    world = _world(draw)
    change, applies = _change(draw, world)
    pool = world.in_state(*(state for state in JobState if (state in change.applies) == applies))
    return _named(draw, world, pool), change


@st.composite
def revisits(draw: DrawFn) -> tuple[Selector, Change]:
    """A change of jobs that have ended: of those whose result is held, whose key is taken, or of any."""
    world = _world(draw)
    kind, ticks = draw(_revisits)
    ended = world.in_state(*Requeue.applies)
    match kind:
        case "hold":
            return _named(draw, world, [record for record in ended if record.held] or ended), Hold(ticks * world.tick)
        case "requeue displaced":
            return _named(draw, world, world.displaced() or ended), Requeue()
    return _named(draw, world, ended), Requeue()


@st.composite
def mass_alterations(draw: DrawFn) -> tuple[Selector, Change]:
    """A change of all jobs of a kind, as far as the limit goes."""
    world = _world(draw)
    sel, (change, _) = _filter(draw, world), _change(draw, world)
    # Everything at once would leave nothing to go on with.
    return (replace(sel, limit=2) if isinstance(change, Delete | Cancel) else sel), change


def _rate(rate: Rate | None, world: World) -> Rate | None:
    return None if rate is None else Rate(rate.every * world.tick, rate.burst)


Ruling = Policy | TenantLimit | QueuePause
"""A change of the rules of a queue."""


@st.composite
def rulings(draw: DrawFn) -> Ruling:
    """A policy, mostly; else a limit of a tenant, or a pause of a tenant or a task."""
    world = _world(draw)
    match draw(_rulings):
        case "policy":
            return _policy(draw, world)
        case "store":
            *_, depth, off = draw(_orders)
            return Policy(queue=STORE, version=world.versions[STORE] + off, depth=depth)
        case "limit":
            queue, tenant, running, rate = draw(_limits)
            return TenantLimit(queue, tenant, running, _rate(rate, world))
    queue, tenant, task, of_tenant, paused, lasts = draw(_pauses)
    lasting = _lasting(lasts, world) if paused else None
    return QueuePause(queue, tenant if of_tenant else None, None if of_tenant else task, paused, lasting)


def _policy(draw: DrawFn, world: World) -> Policy:
    """The rules of a queue, with the version that a saver has read, or one beside it."""
    queue, chunk, ageing, group_running, depth, off = draw(_orders)
    policy = Policy(
        queue=queue, version=world.versions[queue] + off, tenant_batch=chunk, group_running=group_running, depth=depth
    )
    if queue not in pools.GOVERNED:
        return policy
    running, rate, tenant_running, tenant_rate, task_rates, holders = draw(_caps)
    return replace(
        policy,
        running=running,
        rate=_rate(rate, world),
        tenant_running=tenant_running,
        tenant_rate=_rate(tenant_rate, world),
        task_rates={task: Rate(rate.every * world.tick, rate.burst) for task, rate in task_rates.items()},
        tenant_workers=holders,
        ageing=_lasting(ageing, world),
    )


def _lasting(ticks: int | None, world: World) -> int | None:
    return None if ticks is None else ticks * world.tick


@st.composite
def queue_pauses(draw: DrawFn) -> QueuePause:
    """A queue is paused now and then, and resumed more often."""
    queue, paused, lasts = draw(_queue_pauses)
    return QueuePause(queue, paused=paused, lasts=_lasting(lasts, _world(draw)) if paused else None)


@st.composite
def names(draw: DrawFn) -> JobId | JobKey:
    """A job's id or key, known or not."""
    by_key, queue, key = draw(_names)
    return JobKey(queue, key) if by_key else _pick(draw, (*_world(draw).ids, pools.UNKNOWN))


@st.composite
def clauses(draw: DrawFn) -> SweepClause:
    """A bound on a place."""
    place, bounds, limit, dry_run = draw(_clauses)
    bounds = {} if place in (SweepTarget.RESULTS, SweepTarget.KEYS) else _in_ticks(bounds, _world(draw), "older_than")
    return SweepClause(target=place, limit=limit, dry_run=dry_run, **bounds)


@st.composite
def instants(draw: DrawFn) -> int:
    """An instant ahead: a few ticks, or right at, before or after an instant at which something happens."""
    world = _world(draw)
    at_something, nudge, step = draw(_instants)
    horizon = world.horizon()[:8]
    instant = world.now + int(step) * world.tick
    if at_something and horizon:
        instant = _pick(draw, horizon) + int(nudge) * world.tick
    return max(instant, world.now)
