"""What a transfer takes along besides jobs: rules, pauses, documents, the journal, positions
of sources, keys that are held, and schedules."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from headrace.errors import ConfigError
from headrace.routing.passage import DOCUMENT, documents_of
from headrace.routing.policies import copy_policy
from headrace.routing.view import present
from headrace.seam.journal import JournalEntry
from headrace.seam.policy import FOREVER, STORE, QueuePause
from headrace.seam.protocol import Backend, TickStore
from headrace.seam.records import JobKey, Step
from headrace.seam.ticks import Drop, Save, Schedule, ScheduleSelector

_PAGE = 200
_SCHEDULES = f"{DOCUMENT}/schedule/"
"""A schedule that is on its way is kept under this and its uid."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Schedule).decode


async def copy_rules(old: Backend, new: Backend) -> int:
    """Policies, limits and pauses, as they are in the first store: how many policies. What only the second one has
    stays."""
    if old.policies is None or new.policies is None:
        return 0
    states = [state for state in await old.policies.find() if state.policy.queue != STORE]
    now = await old.now()
    for state in states:
        await copy_policy(new.policies, state.policy)
        for task, until in state.paused_tasks.items():
            await new.policies.pause(_pause(state.policy.queue, until, now, task=task))
        after: str | None = None
        while tenants := await old.policies.tenants(state.policy.queue, None, after, _PAGE) if state.governed else []:
            for one in tenants:
                if one.limit is not None:
                    await new.policies.limit(one.limit)
                if one.paused_until is not None:
                    await new.policies.pause(_pause(one.queue, one.paused_until, now, tenant=one.tenant))
            after = tenants[-1].tenant
    for queue in (await old.stats()).queues:
        if queue.paused:
            until = FOREVER if queue.paused_until is None else queue.paused_until
            await new.policies.pause(_pause(queue.queue, until, now))
    return len(states)


def _pause(queue: str, until: int, now: int, *, tenant: str | None = None, task: str | None = None) -> QueuePause:
    return QueuePause(queue, tenant, task, True, None if until >= FOREVER else max(1, until - now))


async def copy_documents(old: Backend, new: Backend) -> int:
    """All documents but those of transfers, and no others: how many."""
    names = await _names(old)
    every = sorted({*names, *await _names(new)})
    for first in range(0, len(every), _PAGE):
        some = every[first : first + _PAGE]
        bodies, known = await documents_of(old).get(some), await documents_of(new).get(some)
        for name, one, there in zip(some, bodies, known, strict=True):
            body = None if one is None else one.body
            if body != (None if there is None else there.body):
                await documents_of(new).put(name, body, 0 if there is None else there.version)
    return len(names)


async def _names(store: Backend) -> list[str]:
    names, after = [], ""
    while found := await documents_of(store).find("", after, _PAGE):
        names += [one.name for one in found]
        after = names[-1]
    return [name for name in names if name != DOCUMENT and not name.startswith(f"{DOCUMENT}/")]


async def copy_journal(old: Backend, new: Backend) -> int:
    """The entries since the last one that was copied, with the instants at which they were written: how many."""
    if old.journal is None or new.journal is None:
        return 0
    last = [(one.at, one.text) for one in await new.journal.read(limit=1)]
    missing: list[JournalEntry] = []
    before: int | None = None
    while found := await old.journal.read(before, _PAGE):
        known = next((n for n, one in enumerate(found) if (one.at, one.text) in last), None)
        missing += found[:known]
        if known is not None:
            break
        before = found[-1].number
    for one in reversed(missing):
        await new.journal.write(one.text, one.at)
    return len(missing)


async def copy_positions(old: Backend, new: Backend) -> int:
    """How far sources outside have been read: how many sources. Called once no job can be stored with them any more. A
    store without them cannot have sources."""
    if old.tx is None or new.tx is None:
        return 0
    async with old.tx.begin() as here:
        found = {source: await here.positions(source) for source in await here.sources()}
    for source, positions in found.items():
        async with new.tx.begin() as there:
            known = await there.positions(source)
            steps = [Step(part, known.get(part), next_one) for part, next_one in positions.items()]
            for first in range(0, len(steps), _PAGE):
                await there.advance(source, steps[first : first + _PAGE])
    return len(found)


async def copy_held_keys(old: Backend, new: Backend) -> int:
    """Keys that outlive their jobs: how many."""
    count, after = 0, None
    while found := await present(old.transfers).held_keys(after, _PAGE):
        await present(new.transfers).hold_keys(found)
        count += len(found)
        after = JobKey(found[-1].queue, found[-1].key)
    return count


async def move_schedules(old: Backend, new: Backend) -> int:
    """All schedules with their histories: how many."""
    if old.ticks is None or new.ticks is None:
        return 0
    count = 0
    for paper in await documents_of(old).find(_SCHEDULES, limit=10_000):
        count += await _move(old.ticks, old, new.ticks, new, _decode(paper.body))
    after: str | None = None
    while found := await old.ticks.find(ScheduleSelector(), after, _PAGE):
        for schedule in found:
            count += await _move(old.ticks, old, new.ticks, new, schedule)
        after = found[-1].name
    return count


async def _move(ticks: TickStore, old: Backend, goal: TickStore, new: Backend, named: Schedule) -> bool:
    """Stop the schedule in the first store, let it go on in the second, and remove it from the first. Whoever is
    interrupted goes on from what is written: the schedule as it was, under its uid. False: somebody changed it
    meanwhile, and it is met again."""
    papers, name = documents_of(old), _SCHEDULES + named.uid.hex()
    [paper] = await papers.get([name])
    here = next(iter(await ticks.find(ScheduleSelector(names=[named.name]))), None)
    here = here if here is not None and here.uid == named.uid else None
    there = next(iter(await goal.find(ScheduleSelector(names=[named.name]))), None)
    if there is not None and there.uid != named.uid:
        raise ConfigError(f"expected schedule {named.name!r} in one store, got one in each; remove one of them")
    schedule = None if paper is None else _decode(paper.body)
    if here is not None and not (schedule is not None and _stopped(schedule, here)):
        schedule = here
        written = await papers.put(name, _encode(here), 0 if paper is None else paper.version)
        stopped = Save(replace(here, enabled=False, look_at=None), here.version)
        if not written or not (await ticks.save([stopped]))[0]:
            return False
    if schedule is None:
        return False
    await _copy_history(ticks, new, schedule.uid)
    if there is None and not (await goal.save([Save(schedule, 0)]))[0]:
        return False
    if here is not None and not (await ticks.save([Drop(schedule.name, schedule.version + 1)]))[0]:
        return False
    [paper] = await papers.get([name])
    if paper is not None:
        await papers.put(name, None, paper.version)
    return True


def _stopped(schedule: Schedule, here: Schedule) -> bool:
    """Whether a schedule was stopped here to move, and is as it was then."""
    return here.version == schedule.version + 1 and not here.enabled and here.look_at is None


async def _copy_history(ticks: TickStore, new: Backend, uid: bytes) -> None:
    before: int | None = None
    while found := await ticks.history(uid, before, _PAGE):
        await present(new.transfers).add_ticks(uid, found)
        before = found[-1].slot
