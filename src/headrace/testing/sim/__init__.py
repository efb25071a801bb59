"""Deterministic simulation: whole clusters in one thread, in virtual time, from one seed.

Code under test runs on a :class:`SimLoop`, where a year of sleeping costs nothing and the order of everything that
could happen at once is drawn from the seed. It reaches its store through a :class:`FaultyBackend`, which delays, loses
and repeats calls; nodes can be frozen or killed in the middle of anything. Every call from both ends, every run of a
handler and every fault goes into a :class:`History`, and :func:`check` says whether that history is one that may
happen. The same seed gives the same run, to the byte, in any process.

A test of your own may be as small as this:

>>> import asyncio
>>> from random import Random
>>> from headrace.backends.memory import MemoryBackend
>>> from headrace.errors import Unavailable
>>> from headrace.seam.records import Row
>>> async def main() -> History:
...     loop = asyncio.get_running_loop()
...     clock = SimClock(loop)
...     history = History(clock.now, seed=7)
...     store = FaultyBackend(MemoryBackend(), Random(7), Plan(mute=0.5), history, Node(loop, "producer"))
...     while True:  # an insert is safe to repeat: the id makes it the same
...         try:
...             await store.insert([Row(bytes(16), "mail", "welcome", {})])
...             return history
...         except Unavailable:
...             await asyncio.sleep(1)
>>> history = run(main(), seed=7)
>>> check(history).ok
True

:func:`simulate` plays a whole scenario drawn from a seed; ``python -m headrace.testing.sim SEED`` does so from the
command line and tells the story of the first violation.
"""

from headrace.testing.sim.checker import check
from headrace.testing.sim.clock import SimClock
from headrace.testing.sim.faults import FaultyBackend
from headrace.testing.sim.history import History
from headrace.testing.sim.loop import Deadlock, Livelock, SimLoop, run
from headrace.testing.sim.nodes import Node
from headrace.testing.sim.plan import CALM, Plan
from headrace.testing.sim.scenarios import Cast, Scenario, draw_scenario, simulate
from headrace.testing.sim.verdict import Verdict, Violation

__all__ = [
    "CALM",
    "Cast",
    "Deadlock",
    "FaultyBackend",
    "History",
    "Livelock",
    "Node",
    "Plan",
    "Scenario",
    "SimClock",
    "SimLoop",
    "Verdict",
    "Violation",
    "check",
    "draw_scenario",
    "run",
    "simulate",
]
