"""Changes from outside, of jobs that may be in any of several stores."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.errors import PartlyUnavailable, Unavailable
from headrace.routing.transit import deliver_named
from headrace.routing.view import View, those_there
from headrace.seam.protocol import Backend
from headrace.seam.records import Altered, Change, JobId, JobKey, Selector, Stamp


async def alter(view: View, sel: Selector, change: Change, at: Stamp) -> list[Altered]:
    """Each job is changed in the store that has it."""
    if view.alone is not None:
        return await view.alone.alter(sel, change, at)
    if sel.ids is None and sel.keys is None:
        return await _alter_matching(view, sel, change, at)
    names: list[JobId | JobKey] = [*(sel.ids or ()), *(sel.keys or ())]
    found: dict[JobId | JobKey, Altered | None] = {}
    problem: Unavailable | None = None
    for name in dict.fromkeys(names):
        try:
            if (answer := await _alter_one(view, name, sel, change, at)) is not None:
                found[name] = answer
        except Unavailable as error:
            if not view.apart:
                raise
            found[name], problem = None, error
    if problem is not None:
        answers = [found.get(name) for name in names]
        unknown = [n for n, name in enumerate(names) if name in found and answers[n] is None]
        raise PartlyUnavailable(str(problem), answers, unknown) from problem
    return list({answer.id: answer for answer in found.values() if answer is not None}.values())


async def _alter_one(view: View, name: JobId | JobKey, sel: Selector, change: Change, at: Stamp) -> Altered | None:
    """In the last store that knows it: a job under this key may have ended in an earlier one."""
    named = replace(sel, ids=None, keys=[name]) if isinstance(name, JobKey) else replace(sel, ids=[name], keys=None)
    for attempt in range(2):
        stores = view.stores if attempt == 0 else view.stores[-1:]
        known, problem = await _that_know(view._replace(stores=stores), name, at)
        for store in reversed(known):
            if answers := await store.alter(named, change, at):
                return answers[0]
        if problem is not None:
            raise problem
        if known and not view.leg:
            return None
        await deliver_named(view, [name])
    return None


async def _that_know(view: View, name: JobId | JobKey, at: Stamp) -> tuple[list[Backend], Unavailable | None]:
    """The stores that have the job, and why one that may have it did not answer."""

    async def ask(store: Backend) -> Backend | None:
        return store if (await store.fetch([name], at=at))[0] is not None else None

    found, problem = await those_there(view, ask)
    return [store for store in found if store is not None], problem


async def _alter_matching(view: View, sel: Selector, change: Change, at: Stamp) -> list[Altered]:
    """In the order of their ids over all stores, each of which goes as far as the others did, in smaller and smaller
    steps. So there may be a few more answers than the limit says. While a store is away, the others are changed to
    their ends; then the call raises."""
    found: list[Altered] = []
    positions: dict[Backend, JobId | None] = dict.fromkeys(view.stores, sel.above)
    lagging, step, upto = list(view.stores), sel.limit, b""
    problem: Unavailable | None = None
    while lagging:
        for store in lagging:
            try:
                some = await store.alter(replace(sel, above=positions[store], limit=step), change, at)
            except Unavailable as error:
                if not view.apart:
                    raise
                some, problem = [], error
            found += some
            positions[store] = some[-1].id if len(some) == step else _END
            if len(some) == step:
                upto = max(upto, some[-1].id)
        lagging = [store for store, position in positions.items() if (position or b"") < upto]
        step = max(1, step // 8)
    if problem is not None and len(found) < sel.limit:
        raise PartlyUnavailable(str(problem)) from problem
    return sorted(found, key=lambda one: one.id)


_END = b"\xff" * 17
"""Above all ids."""
