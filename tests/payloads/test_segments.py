"""Segments: cells in few objects, and back."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from hypothesis import strategies as st
from servers.seaweedfs import SeaweedFS

from headrace.core.clock import ManualClock
from headrace.core.patience import Patience
from headrace.errors import ObjectCorrupt, ObjectMissing, ObjectsRefused, ObjectsUnavailable
from headrace.payloads.codec import RAW, Envelope
from headrace.payloads.object_url import Location, parse
from headrace.payloads.objects import LARGE, Objects
from headrace.payloads.reference import Reference, read_reference
from headrace.payloads.segments import Segments, ToStow, packed
from tests.objects import server
from tests.unit.given import given

MIB = 1024 * 1024
HOUR = 3_600_000_000
ENVELOPE = Envelope(max_size=64 * MIB, compress_over=None)
SIZES = [0, 1, 4_500, MIB, 64 * MIB]
MEMORY = """
import asyncio, os, sys
from random import Random
from headrace.core.clock import SystemClock
from headrace.payloads.object_url import parse
from headrace.payloads.objects import Objects
from headrace.payloads.segments import Segments, ToStow

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) // 1024

async def main():
    segments = Segments(Objects(parse(sys.argv[1])), SystemClock(), Random())
    await segments.load(await segments.stow([ToStow(os.urandom(1_000))]))
    base = peak()
    cell = os.urandom(64 * 1024 * 1024)
    [reference] = await segments.stow([ToStow(cell)])
    stowed = peak()
    del cell
    [loaded] = await segments.load([reference])
    assert len(loaded) == 64 * 1024 * 1024
    print(stowed - base, peak() - base)

asyncio.run(main())
"""


async def overwrite(objects: Objects, key: str, body: bytes) -> None:
    """What Headrace itself never does."""
    await objects._store.put_async(key, body)


def sealed(size: int) -> bytes:
    return ENVELOPE.wrap(os.urandom(size), RAW, "blob")


@pytest.mark.parametrize("size", SIZES)
async def test_a_round_trip(segments: Segments, size: int) -> None:
    cell = sealed(size)
    [reference] = await segments.stow([ToStow(cell)])
    assert await segments.load([read_reference(reference.cell, "blob")]) == [cell]


async def test_all_sizes_in_one_batch(segments: Segments, objects: Objects) -> None:
    cells = [b"", b"1", *map(sealed, [*SIZES[:4], 9 * MIB, 0, 4_500])]
    references = await segments.stow(list(map(ToStow, cells)))
    assert await segments.load(references) == cells
    assert await segments.load([*references[::-1], references[0]]) == [*cells[::-1], cells[0]]
    assert len({one.key for one in references}) == 3  # the large one alone, and what came before and after it


async def test_nothing_to_do(segments: Segments, objects: Objects) -> None:
    assert await segments.stow([]) == []
    assert await segments.load([]) == []
    assert not objects.requests


async def test_ten_thousand_cells(segments: Segments, objects: Objects) -> None:
    cells = [os.urandom(4_500) for _ in range(10_000)]
    references = await segments.stow(list(map(ToStow, cells)))
    assert objects.requests == {"create": 6}
    assert await segments.load(references) == cells
    assert objects.requests == {"create": 6, "read": 6}
    some = Random(1).sample(range(10_000), 300)
    assert await segments.load([references[index] for index in some]) == [cells[index] for index in some]


async def test_a_thousand_jobs_take_twenty_requests_at_most(s3: Location, clock: ManualClock) -> None:
    """As the server counts them: a bulk of jobs with three sections each, which workers claim in batches."""
    segments = Segments(Objects(s3), clock, Random())
    before = server().requests()
    cells = [os.urandom(size) for _ in range(1_000) for size in (2_700, 1_600, 155)]
    references = await segments.stow(list(map(ToStow, cells)))
    for batch in range(0, 3_000, 300):
        assert await segments.load(references[batch : batch + 300]) == cells[batch : batch + 300]
    deadline = time.monotonic() + 60
    while server().requests() - before < 11 and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert 11 <= server().requests() - before <= 20


async def test_delayed_jobs_are_packed_by_the_hour_in_which_they_are_due(
    segments: Segments, clock: ManualClock, objects: Objects
) -> None:
    now = clock.now()
    cells = [ToStow(os.urandom(600_000), now + hours * HOUR) for hours in (100, 0, 200, 100, 0)]
    references = await segments.stow(cells)
    assert [one.hour - now // HOUR for one in references] == [100, 0, 200, 100, 0]
    assert await segments.load(references) == [one.cell for one in cells]
    assert objects.requests["create"] == 3


async def test_a_missing_object_spoils_no_other(segments: Segments, objects: Objects) -> None:
    [gone] = await segments.stow([ToStow(b"gone")])
    kept = await segments.stow([ToStow(b"one"), ToStow(b"two")])
    await objects.delete([gone.key])
    one, missing, two = await segments.load([kept[0], gone, kept[1]])
    assert (one, two) == (b"one", b"two")
    assert isinstance(missing, ObjectMissing)


async def test_a_truncated_object(segments: Segments, objects: Objects) -> None:
    references = await segments.stow([ToStow(b"12345"), ToStow(b"67890"), ToStow(b"abcde")])
    await overwrite(objects, references[0].key, b"12345678")
    whole, cut, lost = await segments.load(references)
    assert whole == b"12345"
    for damaged, told in ((cut, "expected the 5 bytes at 5 that were stored, got only 3"), (lost, "got only 0")):
        assert isinstance(damaged, ObjectCorrupt)
        assert told in str(damaged)
    [lost] = await segments.load([references[2]])
    assert isinstance(lost, ObjectCorrupt)


async def test_a_corrupt_object(segments: Segments, objects: Objects) -> None:
    references = await segments.stow([ToStow(b"12345"), ToStow(sealed(100_000))])
    await overwrite(objects, references[0].key, b"1234!" + bytes(100_005))
    for damaged in await segments.load(references):
        assert isinstance(damaged, ObjectCorrupt)
        assert "got others; restore the object" in str(damaged)


async def test_a_forged_reference_finds_nothing(segments: Segments) -> None:
    [reference] = await segments.stow([ToStow(b"12345")])
    forged = [
        reference._replace(length=4), reference._replace(offset=1), reference._replace(digest=bytes(8)),
        reference._replace(offset=2**24 - 1, length=2**32 - 1), reference._replace(name=bytes(8)),
        Reference(0, b"../../et", 0, 5, bytes(4)),
    ]  # fmt: skip
    found = await segments.load(forged)
    assert [type(one) for one in found] == [ObjectCorrupt] * 4 + [ObjectMissing] * 2


async def test_a_name_that_is_taken_is_drawn_again(objects: Objects, clock: ManualClock) -> None:
    first, second = (Segments(objects, clock, Random(7)) for _ in range(2))
    [one] = await first.stow([ToStow(b"one")])
    [two] = await second.stow([ToStow(b"two")])
    assert one.name != two.name
    assert await first.load([one, two]) == [b"one", b"two"]
    for _ in range(3):
        await first.stow([ToStow(b"x")])
    with pytest.raises(ObjectsUnavailable, match="expected that a random key is free, got 3 in a row that are taken"):
        await Segments(objects, clock, Random(7)).stow([ToStow(b"three")])


async def test_once_the_server_is_away_no_more_is_asked_of_it(own_server: SeaweedFS, clock: ManualClock) -> None:
    objects = Objects(parse(own_server.url(timeout="2s")))
    segments = Segments(objects, clock, Random())
    references = [(await segments.stow([ToStow(b"x")]))[0] for _ in range(40)]
    own_server.freeze()
    began = time.monotonic()
    found = await segments.load(references)
    assert {type(one) for one in found} == {ObjectsUnavailable}
    assert objects.requests["read"] <= 9
    with pytest.raises(ObjectsUnavailable):
        await segments.stow([ToStow(bytes(LARGE)) for _ in range(20)])
    assert time.monotonic() - began < 60
    own_server.thaw()
    segments = Segments(Objects(parse(own_server.url())), clock, Random())
    assert await segments.load(references) == [b"x"] * 40


async def test_what_was_stowed_outlives_kills_of_the_server(own_server: SeaweedFS, clock: ManualClock) -> None:
    segments = Segments(Objects(parse(own_server.url(timeout="5s"))), clock, Random())
    stowed: list[tuple[Reference, bytes]] = []
    failed, done = 0, False

    async def stow() -> None:
        nonlocal failed
        while not done:
            cells = [os.urandom(4_500) for _ in range(20)]
            try:
                stowed.extend(zip(await segments.stow(list(map(ToStow, cells))), cells, strict=True))
            except ObjectsUnavailable:
                failed += 1
                await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(stow())
        for kills in range(3):
            while len(stowed) < (kills + 1) * 500:
                await asyncio.sleep(0.01)
            own_server.kill()
            while failed <= kills:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(own_server.start)
        done = True
    references, cells = zip(*stowed, strict=True)

    async def load() -> list[object]:
        found = await segments.load(references)
        if away := next((one for one in found if isinstance(one, ObjectsUnavailable)), None):
            raise away
        return [*found]

    found = await Patience(Random(), 60).repeat(load)
    wrong = [
        f"{reference}: {one}" for reference, one in zip(references, found, strict=True) if isinstance(one, Exception)
    ]
    assert not wrong, (len(found), wrong[:3], own_server.log()[-3_000:])
    assert found == [*cells]


async def test_wrong_credentials(clock: ManualClock) -> None:
    segments = Segments(Objects(parse(server().url(access_key_id="nobody"))), clock, Random())
    with pytest.raises(ObjectsRefused):
        await segments.stow([ToStow(b"x")])
    [refused] = await segments.load([Reference(1, bytes(8), 0, 1, bytes(4))])
    assert isinstance(refused, ObjectsRefused)


@pytest.mark.parametrize("kind", ["s3", "file"])
def test_memory_stays_below_three_times_the_size(kind: str, s3: Location, tmp_path: Path) -> None:
    url = server().url("memory") if kind == "s3" else f"file://{tmp_path}"
    ran = subprocess.run([sys.executable, "-c", MEMORY, url], capture_output=True, text=True, check=True)
    stowed, loaded = map(int, ran.stdout.split())
    assert stowed <= 3 * 64, ran.stdout
    assert loaded <= 3 * 64, ran.stdout


CELLS = st.builds(ToStow, st.integers(0, 11).map(lambda mib: bytes(mib * MIB)), st.none() | st.integers(0, 100 * HOUR))


@given(
    st.lists(CELLS),
    st.integers(0, 100 * HOUR),
    examples=50,
)
def test_every_cell_is_packed_once_and_before_its_segment_ends(cells: list[ToStow], now: int) -> None:
    parts = list(packed(cells, now))
    assert sorted(index for _, part in parts for index in part) == list(range(len(cells)))
    for hour, part in parts:
        assert len(part) == 1 or sum(len(cells[index].cell) for index in part) <= LARGE
        hours = [max(now, cells[index].due or 0) // HOUR for index in part]
        assert max(hours) == hour
        assert min(hours) // 24 == hour // 24
