"""Which of many listeners of a queue looks first."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain, repeat

from headrace.errors import HeadraceError

_STEP = 0.01
_LONGEST_STEP = 0.25
"""Seconds between the steps in which listeners look: three times what a look takes, within these bounds. At each step
twice as many look."""
_SMOOTHING = 0.2
_FRESH = 1.0
"""Seconds after which a note is forgotten."""
_LOOKS = (1.0, 2.0, 4.0, 10.0)
"""Seconds between looks at who else listens; the last one repeats."""
EVERYBODY = ""
"""The note that asks all to look at once."""

Ranks = Callable[[str, Sequence[str]], Awaitable[list[tuple[str, int, int]]]]
"""For each queue: how many of its listeners come before this holder, and how many there are."""


def note(jobs: int, token: int) -> str:
    """This many jobs may have become claimable; the token decides who looks first."""
    return f"{jobs}.{token:08x}"


def quiet(tokens: Iterable[str], next_in: int | None) -> str:
    """Nothing due is left of what these notes were about, nor will be for ``next_in`` microseconds."""
    return f"-{'' if next_in is None else next_in}.{'.'.join(tokens)}"


class Crowd:
    """The listeners of the same queues, as far as one of them knows.

    A note about one job would wake all of them, and all but one would look in vain. So they have an order, which starts
    with another one each time: as many as there are jobs look at once, one more a moment later, then two, four, eight
    more; unless an earlier one has found that nothing is left, and said so. A listener that is alone, or does not know
    the others, looks at once. A lost note costs no more than any lost hint: listeners also poll.
    """

    def __init__(self) -> None:
        self._ranks: dict[str, tuple[int, int]] = {}
        self._look = 0.0
        self._waiting: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self._looking: dict[str, dict[str, tuple[float, int]]] = {}

    @property
    def _step(self) -> float:
        return min(max(_STEP, 3 * self._look), _LONGEST_STEP)

    async def keep_up(self, holder: str, queues: Sequence[str], ranks: Ranks) -> None:
        """Find out now and then who else listens."""
        for pause in chain(_LOOKS, repeat(_LOOKS[-1])):
            try:
                found = await ranks(holder, queues)
                self._ranks = {f"queue:{queue}": (rank, size) for queue, rank, size in found}
            except HeadraceError:
                self._ranks = {}
            await asyncio.sleep(pause)

    def hear(self, topic: str, payload: str, look: Callable[[str], None]) -> None:
        """Have ``look`` called for the topic when it is this listener's turn, unless nothing is left by then."""
        jobs, _, rest = payload.partition(".")
        rank, size = self._ranks.get(topic, (0, 1))
        if payload.startswith("-"):
            for token in rest.split("."):
                if timer := self._waiting.pop((topic, token), None):
                    timer.cancel()
            if jobs[1:].isdecimal() and size > 1:
                self._later(topic, "due", 1, int(jobs[1:16]) / 1e6 + self._step * rank.bit_length(), look)
        elif not jobs.isdecimal() or size == 1:
            look(topic)
        else:
            told = int(jobs[:9])
            place = (rank + zlib.crc32(rest.encode())) % size
            self._later(topic, rest, told, self._step * max(0, place + 1 - told).bit_length(), look)

    def _later(self, topic: str, token: str, jobs: int, pause: float, look: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()

        def now() -> None:
            self._waiting.pop((topic, token), None)
            self._looking.setdefault(topic, {})[token] = (loop.time(), jobs)
            look(topic)

        if pause == 0:
            now()
            return
        timer = self._waiting.get((topic, token))
        if timer is None or timer.when() > loop.time() + pause:
            if timer is not None:
                timer.cancel()
            self._waiting[topic, token] = loop.call_later(pause, now)

    def looks(self, queues: Iterable[str]) -> dict[str, dict[str, int]]:
        """Answer the notes about these queues by looking now: the notes, by topic, and how many jobs each tells of."""
        if not self._looking:
            return {}
        since = asyncio.get_running_loop().time() - _FRESH
        found = {topic: self._looking.pop(topic, {}) for topic in [f"queue:{queue}" for queue in queues]}
        answered = {
            topic: {token: jobs for token, (at, jobs) in notes.items() if at > since} for topic, notes in found.items()
        }
        return {topic: notes for topic, notes in answered.items() if notes}

    def took(self, seconds: float) -> None:
        """A look took this long."""
        self._look += _SMOOTHING * (seconds - self._look)

    def leave(self) -> None:
        """Stop listening."""
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
        self._looking.clear()
        self._ranks = {}
