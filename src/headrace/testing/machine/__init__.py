"""A Hypothesis state machine that holds any backend against the model.

The same random operations, at the same given instants, go to the backend under test and to a fresh
:class:`~headrace.backends.memory.MemoryBackend`. Every answer is compared whole, and so are all records and the stats
after each step; some laws are checked from the records alone, so the model is under test too. A backend proves itself
with a few lines::

    @pytest.mark.parametrize("seed", range(6))
    def test_mine_equals_the_model(seed: int) -> None:
        run_machine(machine_for(lambda place: MyBackend(place / "jobs"), durable=True), seed=seed, examples=50)

or, for a run that draws new examples each time, ``TestMine = machine_for(connect).TestCase``.

Where the protocol's text is open, the model's answer is the right one, with three exceptions: bytes are each store's
own; the order of what has no promised order is open; and so is the choice among equals when a limit cuts. A store
without policies is spared them, and has groups all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test

from headrace.seam.protocol import Backend
from headrace.testing.machine.outside import OutsideRules
from headrace.testing.machine.ruling import RulingRules
from headrace.testing.machine.seeds import same_everywhere
from headrace.testing.machine.upkeep import UpkeepRules

__all__ = ["BackendMachine", "machine_for", "run_machine"]


class BackendMachine(UpkeepRules, OutsideRules, RulingRules):
    """Every operation of the waist, on the store under test and on the model; :func:`machine_for` says on which."""


def machine_for(
    connect: Callable[[Path], Backend],
    *,
    durable: bool = False,
    root: Path | None = None,
    without: frozenset[str] = frozenset(),
) -> type[BackendMachine]:
    """The state machine for the backends that ``connect`` makes, each unopened and on a store in its own directory.

    ``durable``: now and then the store is closed and opened again. ``root``: where the directories are made; otherwise
    where the system keeps temporary files. ``without``: what the store cannot do: ``store_depth``, although it has
    policies; ``strict_order``, if it orders jobs by bands of priorities; ``policies``, to spare it them. The class
    counts in ``seen`` how often each rule ran and each outcome came up.
    """
    given = {"connect": staticmethod(connect), "durable": durable, "root": root, "seen": Counter(), "without": without}
    return type("BackendMachineFor", (BackendMachine,), given | {"__module__": __name__})


def run_machine(
    machine: type[BackendMachine], *, seed: int, examples: int = 100, steps: int = 50, shrink: bool = False
) -> None:
    """Run ``examples`` sequences of up to ``steps`` steps; the same seed draws the same ones. Raises what fails.

    A fifth of them are short, and come first: a simple fault then shows in a short sequence. ``shrink`` makes the
    failing sequence as small as possible, which may take minutes.
    """
    short = examples // 5
    plan = [(steps // 6, short)] if short else []
    # Hypothesis varies what it drew before; a few from each of many seeds reach more than many from one.
    plan += [(steps, min(25, examples - done)) for done in range(short, examples, 25)]
    for part, (length, count) in enumerate(plan):
        options = settings(
            max_examples=count,
            stateful_step_count=length,
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        with same_everywhere():
            run_state_machine_as_test(seeded(1_000 * seed + part)(machine), settings=options)
