"""Digests fit into messages, whatever is in them."""

from __future__ import annotations

from headrace.core.feed import Digest, Happening, Tally, Timing, _messages, read_digest
from headrace.core.histogram import BOUNDS
from headrace.seam.events import LONGEST


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
