"""Digests fit into messages, whatever is in them; and who tells them, on which loop."""

from __future__ import annotations

import asyncio
from typing import cast

from headrace.core.clock import SystemClock
from headrace.core.events import Observers
from headrace.core.feed import Digest, Feed, Happening, Tally, Timing, _messages, read_digest
from headrace.core.histogram import BOUNDS
from headrace.core.slow_calls import took
from headrace.core.tasks import Tasks
from headrace.seam.events import LONGEST, Events


def test_a_digest_that_is_too_long_goes_in_several_messages() -> None:
    name, counts = "n" * 1_000, [1] * (len(BOUNDS) + 1)
    tallies = [Tally(f"{name}{number}", name, "completed", 1) for number in range(7)]
    whole = Digest(
        "web-1", 5, tallies, [Happening("failed", 5, queue=name, task=name)], 3, [Timing(name, counts, counts)]
    )
    messages = _messages(whole)
    assert all(len(message) <= LONGEST for message in messages)
    parts = [part for message in messages if (part := read_digest(message)) is not None]
    assert [one for part in parts for one in part.tallies] == tallies
    assert [one for part in parts for one in part.happenings] == whole.happenings
    assert [one for part in parts for one in part.timings] == whole.timings
    assert sum(part.dropped for part in parts) == 3, "what was dropped is told once"


def test_what_fits_into_no_message_is_left_out() -> None:
    """Two parts, of which one alone is too long: it must not be halved for ever."""
    long = Tally("q" * 3_000, "t" * 3_000, "completed", 1)
    [message] = _messages(Digest("web-1", 5, [long], [Happening("failed", 5)]))
    found = read_digest(message)
    assert found is not None
    assert (found.tallies, len(found.happenings)) == ([], 1)


class Ears:
    """Nobody listens; remembers on which loop it was asked."""

    def __init__(self) -> None:
        self.asked: list[asyncio.AbstractEventLoop] = []

    async def heard(self) -> bool:
        self.asked.append(asyncio.get_running_loop())
        return False


async def feed_of(observers: Observers) -> tuple[Feed, Ears]:
    ears = Ears()
    feed = Feed(cast("Events", ears), observers, SystemClock(), Tasks())
    feed.start()
    return feed, ears


async def test_a_store_is_asked_only_on_the_loop_that_has_it_open() -> None:
    """An app may be open on a loop and, for threads, in the background: both tell the same observers."""
    observers = Observers()
    feed, ears = await feed_of(observers)

    async def elsewhere() -> None:
        took(observers, "insert", 0.0)
        await asyncio.sleep(0)

    await asyncio.to_thread(asyncio.run, elsewhere())
    async with asyncio.timeout(30):
        while not ears.asked:
            await asyncio.sleep(0.001)
    assert ears.asked == [asyncio.get_running_loop()]
    await feed.close()
    await asyncio.to_thread(asyncio.run, elsewhere())


async def test_one_feed_at_a_time_tells_and_the_next_takes_its_place() -> None:
    observers = Observers()
    (first, of_first), (second, of_second) = await feed_of(observers), await feed_of(observers)
    for feed, own, other in ((first, of_first, of_second), (second, of_second, of_first)):
        before = len(other.asked)
        async with asyncio.timeout(30):
            while not own.asked:
                took(observers, "insert", 0.0)
                await asyncio.sleep(0.001)
        assert len(other.asked) == before
        await feed.close()
    assert observers.called is None
