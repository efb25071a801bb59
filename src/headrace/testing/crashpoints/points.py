"""All points at which a flow may be cut short, and the run of a flow up to one of them."""

from __future__ import annotations

from collections.abc import Callable

from headrace.backends.memory import MemoryBackend
from headrace.seam.protocol import Backend
from headrace.testing.crashpoints.actor import Actor
from headrace.testing.crashpoints.flows import FLOWS, Flow
from headrace.testing.crashpoints.interrupted import CrashPoint, Interrupted, Side, raise_crash
from headrace.testing.crashpoints.ledger import Event, Ledger


def crash_points(*, finish_and_claim: bool = True, policies: bool = True) -> list[CrashPoint]:
    """Every point, in order; False leaves out the flows that need a capability."""
    missing = {name for name, there in (("finish_and_claim", finish_and_claim), ("policies", policies)) if not there}
    counted = [(flow, _calls(flow)) for flow in FLOWS if not flow.needs & missing]
    return [
        CrashPoint(flow.name, number, side, operation)
        for flow, calls in counted
        for number, operation in enumerate(calls, 1)
        for side in Side
    ]


def listing() -> str:
    """The points as text, one on each line."""
    return "".join(f"{point}\n" for point in crash_points())


def flow_of(point: CrashPoint) -> Flow:
    """The flow that the point lies in."""
    return next(flow for flow in FLOWS if flow.name == point.flow)


async def run_flow(
    flow: Flow,
    backend: Backend,
    ledger: Ledger,
    point: CrashPoint | None = None,
    crash: Callable[[], None] = raise_crash,
) -> list[str]:
    """What comes before the flow, then the flow itself, up to the point or to its end; the calls that it made."""
    first = Actor(Interrupted(backend, ledger), ledger, "w1", flow.handler)
    await flow.before(first)
    ledger.write(Event("asked", at=first.now))
    store = Interrupted(backend, ledger, point, crash)
    await flow.act(Actor(store, ledger, "w1", flow.handler, first.now))
    return store.calls


def _calls(flow: Flow) -> list[str]:
    """The calls of an undisturbed run. The memory store never waits, so this takes no event loop."""
    run = run_flow(flow, MemoryBackend(), Ledger())
    try:
        run.send(None)
    except StopIteration as end:
        calls: list[str] = end.value
        return calls
    raise RuntimeError("the memory store kept a caller waiting")
