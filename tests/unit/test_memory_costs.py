"""What claims and inserts cost the memory store does not depend on numbers that users choose."""

from __future__ import annotations

import sys
from collections.abc import Awaitable

import pytest

from headrace.backends.memory import MemoryBackend
from headrace.seam.policy import Policy
from headrace.seam.records import Claim
from headrace.testing.conformance.base import HOUR, LEASE, T0, row


async def _calls(work: Awaitable[object]) -> int:
    """How many calls of functions, those built in included, it takes."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        await work
    finally:
        sys.setprofile(None)
    return calls


async def _beside(priorities: int, tenants: int, queues: int, delay: int) -> dict[str, int]:
    store = MemoryBackend()
    assert await store.policies.save(Policy(queue="g", tenant_batch=5), T0)
    for base, queue in ((0, "q"), (10_000, "g"), (20_000, "r")):
        await store.insert([
            row(n, queue=f"r{n % queues}" if queue == "r" else queue, tenant=f"t{n % tenants}",
                priority=n % priorities - 9_000, delay=delay)
            for n in range(base, base + 3_000)
        ], T0)  # fmt: skip
    await store.insert([row(n, queue="qg"[n % 2], tenant="t0", priority=9) for n in range(30_000, 30_100)], T0)
    for _ in range(5):
        await store.claim(Claim("w", ("g",), 1, LEASE), T0)  # the tenants wake up
    return {
        "look": await _calls(store.claim(Claim("w", ("none", "r"), 1, LEASE), T0)),
        "claim": await _calls(store.claim(Claim("w", ("q",), 10, LEASE), T0)),
        "claim by turns": await _calls(store.claim(Claim("w", ("g",), 1, LEASE), T0)),
        "insert": await _calls(store.insert([row(40_000, queue="q", priority=7)], T0)),
        "insert by turns": await _calls(store.insert([row(40_001, queue="g", tenant="t0", priority=7)], T0)),
    }


@pytest.mark.parametrize("delay", [0, HOUR], ids=["due", "not due"])
@pytest.mark.parametrize(
    "numbers", [(3_000, 1, 1), (1, 3_000, 1), (1, 1, 1_000)], ids=["priorities", "tenants", "queues"]
)
async def test_claims_and_inserts_cost_the_same_whatever_users_choose(
    numbers: tuple[int, int, int], delay: int
) -> None:
    few = await _beside(1, 1, 1, delay)
    many = await _beside(*numbers, delay)
    assert {call: calls for call, calls in many.items() if calls > few[call] * 1.3} == {}, few
