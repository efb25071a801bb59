"""Stores that take no new jobs: a depth of 0, which each store keeps in the step that would store a job."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from headrace.errors import Unavailable
from headrace.routing.view import present
from headrace.seam.policy import STORE, Policy
from headrace.seam.protocol import Backend

_TRIES = 50
_AGAIN = 0.05


async def close_to_new_jobs(store: Backend) -> None:
    """From now on the store refuses every new job. Once this returns, none can slip in that was on its way."""
    await _set_depth(store, 0)
    while not await present(store.transfers).settle():
        await asyncio.sleep(_AGAIN)


async def open_to_new_jobs(store: Backend, depth: int | None) -> None:
    """The store takes new jobs, if it was closed to them."""
    if await depth_of(store) == 0:
        await _set_depth(store, depth)


async def depth_of(store: Backend) -> int | None:
    """How many jobs may wait in it; None: any number, 0: it is closed."""
    found = await present(store.policies).find([STORE])
    return found[0].policy.depth if found else None


async def _set_depth(store: Backend, depth: int | None) -> None:
    policies = present(store.policies)
    for _ in range(_TRIES):
        found = await policies.find([STORE])
        policy = found[0].policy if found else Policy(queue=STORE)
        if policy.depth == depth or await policies.save(replace(policy, depth=depth)):
            return
    raise Unavailable("the depth of the store is being changed by others all the time; try again")
