"""The object store: what it keeps, what it refuses, and what is told while it is away."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import strategies as st
from servers.seaweedfs import SECRET_KEY, SeaweedFS

from headrace.core.patience import Patience
from headrace.errors import ConfigError, ObjectMissing, ObjectsRefused, ObjectsUnavailable, Unavailable
from headrace.payloads.object_url import Location, parse
from headrace.payloads.objects import LARGE, PAGE, Objects, Range, spans
from tests.objects import server
from tests.unit.given import given

KEY = "segments/2026-11-16/21/0123456789abcdef01234567"
CALLS: list[Callable[[Objects], Awaitable[object]]] = [
    lambda objects: objects.create(KEY, b"body"),
    lambda objects: objects.read(KEY, [Range(0, 4)]),
    lambda objects: objects.folders("segments"),
    lambda objects: objects.delete([KEY]),
    lambda objects: listed(objects, "segments"),
]
FORKED = """
import asyncio, os, sys
from headrace.errors import ConfigError
from headrace.payloads.object_url import parse
from headrace.payloads.objects import Objects

async def use(): await Objects(parse("memory://")).create("key", b"")

if sys.argv[1] == "before": asyncio.run(use())
child = os.fork()
if child == 0:
    try: asyncio.run(use())
    except ConfigError as error: print(error)
    else: print("served")
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
"""


async def listed(objects: Objects, folder: str) -> list[str]:
    return sorted([one.key async for page in objects.pages(folder) for one in page])


async def test_a_key_is_written_once(objects: Objects) -> None:
    assert await objects.create(KEY, b"first")
    assert not await objects.create(KEY, b"second")
    assert await objects.read(KEY, [Range(0, 100)]) == [b"first"]


async def test_of_many_writers_of_a_key_one_wins(objects: Objects) -> None:
    for key in range(10):
        won = await asyncio.gather(*(objects.create(f"{KEY}{key:02}", b"by %d" % writer) for writer in range(4)))
        assert won.count(True) == 1
        assert await objects.read(f"{KEY}{key:02}", [Range(0, 100)]) == [b"by %d" % won.index(True)]


async def test_two_clients_see_the_same_objects(s3: Location) -> None:
    assert await Objects(s3).create(KEY, b"body")
    assert not await Objects(s3).create(KEY, b"other")
    assert await Objects(s3).read(KEY, [Range(1, 2)]) == [b"od"]


async def test_ranges_near_one_another_are_read_in_one_request(objects: Objects) -> None:
    body = bytes(range(256)) * 8_000
    await objects.create(KEY, body)
    ranges = [Range(at, 10) for at in range(0, 200_000, 1_000)]
    assert await objects.read(KEY, ranges) == [body[one.offset : one.end] for one in ranges]
    assert objects.requests["read"] == 1
    far = [Range(0, 10), Range(1_500_000, 10), Range(0, 10), Range(5, 10)]
    assert await objects.read(KEY, far) == [body[one.offset : one.end] for one in far]
    assert objects.requests == {"create": 1, "read": 3}


async def test_a_range_beyond_the_end_is_short(objects: Objects) -> None:
    await objects.create(KEY, b"0123456789")
    ranges = [Range(8, 4), Range(10, 1), Range(2_000_000, 5), Range(2, 0), Range(0, 10)]
    assert await objects.read(KEY, ranges) == [b"89", b"", b"", b"", b"0123456789"]


async def test_an_empty_object(objects: Objects) -> None:
    assert await objects.create(KEY, b"")
    assert await objects.read(KEY, [Range(0, 1)]) == [b""]
    assert await objects.read(KEY, []) == []


async def test_a_missing_object(objects: Objects) -> None:
    with pytest.raises(ObjectMissing, match=f"object {KEY}: expected in .*, but it is not there; something else"):
        await objects.read(KEY, [Range(0, 1)])


async def test_listing_and_deleting(objects: Objects) -> None:
    keys = [f"segments/2026-11-{day}/{hour:02}/{name}" for day in (16, 17) for hour in (0, 9) for name in "abc"]
    for key in keys:
        await objects.create(key, b"12345")
    await objects.create("segments/2026-11-1/00/a", b"")
    assert await objects.folders("segments") == ["2026-11-1", "2026-11-16", "2026-11-17"]
    assert await objects.folders("segments/2026-11-16") == ["00", "09"]
    assert await objects.folders("elsewhere") == []
    assert await listed(objects, "segments/2026-11-16") == keys[:6]
    assert {one.size async for page in objects.pages("segments/2026-11-16") for one in page} == {5}
    await objects.delete([*keys[:3], "segments/2026-11-16/00/gone", keys[5]])
    await objects.delete(keys[:3])
    await objects.delete([])
    assert await listed(objects, "segments/2026-11-16") == keys[3:5]
    await objects.delete(keys)
    assert await listed(objects, "segments") == ["segments/2026-11-1/00/a"]


async def test_pages_are_bounded(objects: Objects) -> None:
    keys = [f"segments/2026-11-16/00/{number:04}" for number in range(PAGE + 5)]
    await asyncio.gather(*(objects.create(key, b"") for key in keys))
    assert [len(page) async for page in objects.pages("segments")] == [PAGE, 5]
    await objects.delete(keys)
    assert await listed(objects, "segments") == []


async def test_few_requests_are_under_way_at_once(objects: Objects) -> None:
    under_way, most = 0, 0
    put = objects._store.put_async

    class Counting:
        async def put_async(self, *args: object, **kwargs: object) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await put(*args, **kwargs)  # type: ignore[arg-type]
            under_way -= 1

    objects._store = Counting()  # type: ignore[assignment]
    await asyncio.gather(*(objects.create(f"{KEY}{number}", b"x") for number in range(50)))
    assert most == 8


@pytest.mark.parametrize("how", ["frozen", "killed"])
async def test_a_server_that_is_away(own_server: SeaweedFS, how: str) -> None:
    objects = Objects(parse(own_server.url(timeout="2s")))
    assert await objects.create(KEY, b"body")
    own_server.freeze() if how == "frozen" else own_server.kill()
    for call in CALLS:
        began = time.monotonic()
        with pytest.raises(Unavailable) as away:
            await call(objects)
        assert time.monotonic() - began < 30
        assert type(away.value) is ObjectsUnavailable
        assert "object store s3://headrace-test: expected an answer" in str(away.value)
        assert SECRET_KEY not in repr(away.value)
    own_server.thaw() if how == "frozen" else own_server.start()
    objects = Objects(parse(own_server.url(timeout="60s")))
    again = Patience(Random(), 60)
    await again.repeat(lambda: objects.create(KEY, b"body"))
    assert await again.repeat(lambda: objects.read(KEY, [Range(0, 100)])) == [b"body"]


async def test_nobody_listens() -> None:
    objects = Objects(parse("s3://jobs?endpoint=http://127.0.0.1:1&access_key_id=a&secret_access_key=b"))
    with pytest.raises(ObjectsUnavailable, match="expected an answer to create, got no connection; check that it runs"):
        await objects.create(KEY, b"")


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (503, "SlowDown", ObjectsUnavailable),
        (500, "InternalError", ObjectsUnavailable),
        (429, "TooManyRequests", ObjectsUnavailable),
        (409, "OperationAborted", ObjectsUnavailable),
        (400, "RequestTimeout", ObjectsUnavailable),
        (400, "ExpiredToken", ObjectsRefused),
        (301, "PermanentRedirect", ObjectsRefused),
        (401, "Unauthorized", ObjectsRefused),
        (501, "NotImplemented", ObjectsUnavailable),
    ],
)
async def test_answers_of_a_server(status: int, code: str, error: type[ObjectsUnavailable]) -> None:
    """Those that a real server gives only under circumstances that cannot be had here."""
    body = f"<Error><Code>{code}</Code></Error>"
    answer = f"HTTP/1.1 {status} No\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answering, "127.0.0.1", 0) as listening:
        endpoint = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        objects = Objects(parse(f"s3://jobs?endpoint={endpoint}&access_key_id=a&secret_access_key=hunter2"))
        with pytest.raises(ObjectsUnavailable) as told:
            await objects.read(KEY, [Range(0, 1)])
    assert type(told.value) is error
    assert str(status) in str(told.value) or status == 301
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize(
    "wrong",
    [{"secret_access_key": "wrong-hunter2"}, {"access_key_id": "nobody"}, {"bucket": "no-such-bucket"}],
    ids=["secret", "key", "bucket"],
)
async def test_wrong_credentials_or_bucket(wrong: dict[str, str]) -> None:
    objects = Objects(parse(server().url(**wrong)))
    for call in CALLS:
        with pytest.raises(ObjectsRefused) as refused:
            await call(objects)
        assert isinstance(refused.value, ConfigError)
        assert isinstance(refused.value, ObjectsUnavailable)
        assert "create it" in str(refused.value) or "check the credentials" in str(refused.value)
        for secret in (SECRET_KEY, "hunter2"):
            assert secret not in repr(refused.value)
        assert refused.value.__suppress_context__


async def test_rights_that_do_not_suffice() -> None:
    objects = Objects(parse(server().url(access_key_id="reader")))
    told = (
        r"object store s3://headrace-test: refused to create \(403 AccessDenied\); check the credentials, that they may"
    )
    with pytest.raises(ObjectsRefused, match=told):
        await objects.create(KEY, b"")
    with pytest.raises(ObjectMissing):
        await objects.read(KEY, [Range(0, 1)])


async def test_a_directory_with_a_file_in_the_way(tmp_path: Path) -> None:
    objects = Objects(parse(f"file://{tmp_path}"))
    (tmp_path / "segments").touch()
    with pytest.raises(ObjectsUnavailable, match=f"file://{tmp_path}: cannot create {KEY}: .*Not a directory"):
        await objects.create(KEY, b"")


@pytest.mark.parametrize(("when", "told"), [("before", "start processes with spawn"), ("never", "served")])
def test_a_forked_process_is_told_rather_than_that_it_hangs(when: str, told: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, when]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert told in ran.stdout


@given(st.lists(st.builds(Range, st.integers(0, 3 * LARGE), st.integers(0, LARGE // 4) | st.just(2 * LARGE))))
def test_spans_cover_all_ranges_and_are_not_large(ranges: list[Range]) -> None:
    groups = spans(ranges)
    assert sorted(one for group in groups for one in group) == sorted({one for one in ranges if one.length})
    for group in groups:
        assert len(group) == 1 or max(one.end for one in group) - group[0].offset <= LARGE


def test_obstore_is_imported_only_to_connect() -> None:
    code = "import sys, headrace.payloads.segments, headrace.payloads.lifecycle; print('obstore' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
