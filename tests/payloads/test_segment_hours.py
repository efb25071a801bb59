"""The end of segments."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest

from headrace.core.clock import ManualClock
from headrace.errors import ConfigError, ObjectMissing
from headrace.payloads.objects import Objects
from headrace.payloads.reference import Reference, day_of
from headrace.payloads.segment_hours import SegmentHours
from headrace.payloads.segments import Segments, ToStow

HOUR = 3_600_000_000
DAY = 24 * HOUR
GRACE = 6 * HOUR


@pytest.fixture
async def hours(objects: Objects, clock: ManualClock) -> SegmentHours:
    return SegmentHours(objects, clock)


async def three_days(segments: Segments, clock: ManualClock) -> list[Reference]:
    """A segment of today and each of the next two days, two in the last."""
    now = clock.now()
    references = await segments.stow([ToStow(b"%d" % ahead, now + ahead * DAY) for ahead in range(3)])
    return references + await segments.stow([ToStow(b"more", now + 2 * DAY)])


async def test_days(hours: SegmentHours, segments: Segments, objects: Objects, clock: ManualClock) -> None:
    assert await hours.days() == []
    today = (await three_days(segments, clock))[0].day
    await objects.create("segments/not-a-day/00/x", b"")
    assert await hours.days() == [today + timedelta(days=ahead) for ahead in range(3)]


async def test_an_hour_is_deleted_when_it_and_its_grace_are_over(
    hours: SegmentHours, segments: Segments, objects: Objects, clock: ManualClock
) -> None:
    references = await three_days(segments, clock)
    first = references[0].hour
    with pytest.raises(ConfigError, match=f"segments to delete: expected an hour before .*, got {first}; wait for its"):
        await hours.delete(first, GRACE)
    over = (first + 1) * HOUR + GRACE
    clock.advance((over - clock.now()) / 1_000_000 - 1)
    with pytest.raises(ConfigError):
        await hours.delete(first, GRACE)
    clock.advance(2)
    assert await hours.before(first) == []
    assert await hours.before(first + 1) == [first]
    assert await hours.before(first + 25) == [first, first + 24]
    assert await hours.delete(first, GRACE) == 1
    assert await hours.delete(first, GRACE) == 0
    found = await segments.load(references)
    assert isinstance(found[0], ObjectMissing)
    assert found[1:] == [b"1", b"2", b"more"]
    assert {references[0].day + timedelta(days=ahead) for ahead in (1, 2)} <= {*await hours.days()}
    clock.advance("2d")
    assert await hours.delete(references[2].hour, GRACE) == 2


async def test_what_was_just_written_into_an_hour_long_over_stays(objects: Objects, clock: ManualClock) -> None:
    """By a process whose clock is wrong."""
    late = Segments(objects, ManualClock(clock.now() - 30 * DAY), Random())
    [reference] = await late.stow([ToStow(b"late")])
    hours = SegmentHours(objects, clock)
    assert await hours.delete(reference.hour, GRACE) == 0
    assert await late.load([reference]) == [b"late"]


async def test_orphans(hours: SegmentHours, segments: Segments, objects: Objects, clock: ManualClock) -> None:
    references = await three_days(segments, clock)
    last = references[3].day
    referred = {references[2].key}
    assert [page async for page in hours.orphans(last, referred, GRACE)] == []
    clock.advance(GRACE / 1_000_000 + 10)
    assert [page async for page in hours.orphans(last, referred, GRACE)] == [[references[3].key]]
    async for page in hours.orphans(last, referred, GRACE):
        await objects.delete(page)
    assert [page async for page in hours.orphans(last, referred, GRACE)] == []
    assert (await segments.load(references))[:3] == [b"0", b"1", b"2"]
    assert day_of(references[2].hour) == last
