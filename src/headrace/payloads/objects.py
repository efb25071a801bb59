"""Objects: bytes under keys in S3, Google Cloud, Azure, a directory or memory, through obstore.

Every request has a time-out, and few are under way at once. Obstore must not be used on both sides of a fork: there it
would hang, so here it is refused.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from headrace.errors import ConfigError, HeadraceError, ObjectMissing, ObjectsRefused, ObjectsUnavailable
from headrace.payloads.object_url import Location
from headrace.seam.forks import in_child
from headrace.seam.instants import from_datetime

T = TypeVar("T")

PAGE = 1_000
"""How many keys are listed, or deleted, in one request."""
LARGE = 8 * 1024 * 1024
"""Of requests for more bytes than this, only one is under way at a time."""
_PIECE = 1024 * 1024
_NEAR = 256 * 1024
"""Reading this many bytes for nothing is cheaper than another request."""
_AT_ONCE = 8
_SLOWEST = 1024 * 1024
"""Bytes per second that a request is given time for."""
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_BEYOND = re.compile(r"status code: 416|StartTooLarge")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist")
_WRONG_REGION = "redirect without LOCATION"
_PASSING = re.compile(r"^(5..|408|409|429)|RequestTimeout")


Timed = Callable[[str, float, int], None]
"""Hears of every request: which, how many seconds it took, and how many bytes it wrote."""


class Range(NamedTuple):
    """A part of an object."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


class ObjectInfo(NamedTuple):
    """An object as it is listed."""

    key: str
    size: int
    written: int
    """When, by the clock of the object store."""


class Objects:
    """The objects under one location.

    All methods raise ``ObjectsUnavailable`` while the object store does not serve, and ``ObjectsRefused`` when it does
    not let us.
    """

    def __init__(self, location: Location, keep_days: int | None = None, timed: Timed | None = None) -> None:
        self.location = location
        self._timed = timed
        self._notes: dict[str, str] | None = None
        if keep_days is not None and location.scheme not in ("file", "memory"):
            self._notes = {"headrace_keep_days": str(keep_days)}
            """What every object says of itself: how long it stays after its day."""
        self.requests: Counter[str] = Counter()
        """How many requests were made so far: create, read, list, delete."""
        self._store = location.connect()
        self._root = Path(location.prefix) if location.scheme == "file" else None
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._large = asyncio.Lock()

    def __repr__(self) -> str:
        return f"Objects({self.location.where!r})"

    async def create(self, key: str, body: bytes) -> bool:
        """Store an object, durably. False: the key is taken, and nothing was written."""
        try:
            async with self._request("create", key, len(body)):
                await self._store.put_async(key, body, mode="create", use_multipart=False, attributes=self._notes)
                if self._root is not None:
                    await asyncio.to_thread(_make_durable, self._root, key)
        except _Taken:
            return False
        except ObjectMissing as error:
            raise _no_bucket(self.location) from error
        return True

    async def read(self, key: str, ranges: Sequence[Range]) -> list[bytes]:
        """The bytes of each range; fewer where the object is shorter. Ranges near one another are read together.

        Raises ``ObjectMissing``.
        """
        found: dict[Range, bytes] = {}
        await together(self._read(key, span, found) for span in spans(ranges))
        return [found.get(one, b"") for one in ranges]

    async def _read(self, key: str, span: Sequence[Range], found: dict[Range, bytes]) -> None:
        start, end = span[0].offset, max(one.end for one in span)
        try:
            async with self._request("read", key, end - start):
                if end - start > LARGE:
                    found[span[0]] = await self._read_large(key, start, end)
                    return
                got = await self._store.get_range_async(key, start=start, end=end)
        except _Beyond:
            return
        if len(span) == 1:
            found[span[0]] = got.to_bytes()
        else:
            with memoryview(got) as view:
                found.update((one, bytes(view[one.offset - start : one.end - start])) for one in span)

    async def _read_large(self, key: str, start: int, end: int) -> bytes:
        """In pieces: obstore may keep what it gave out until it is called again."""
        answer = await self._store.get_async(key, options={"range": (start, end)})
        return b"".join([piece async for piece in answer.stream(min_chunk_size=_PIECE)])

    async def pages(self, folder: str) -> AsyncIterator[list[ObjectInfo]]:
        """The objects under a folder, however deep, in pages and in no order."""
        stream = self._store.list(folder, chunk_size=PAGE)
        while True:
            async with self._request("list", folder):
                page = await anext(stream, None)
            if page is None:
                return
            yield [ObjectInfo(one["path"], one["size"], from_datetime(one["last_modified"])) for one in page]

    async def folders(self, folder: str) -> list[str]:
        """The names of the folders in a folder, in order."""
        async with self._request("list", folder):
            found = await self._store.list_with_delimiter_async(folder)
        return sorted(path.rpartition("/")[2] for path in found["common_prefixes"])

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; a key without an object is none to delete."""
        for at in range(0, len(keys), PAGE):
            page = keys[at : at + PAGE]
            try:
                async with self._request("delete", page[0]):
                    await self._store.delete_async(page)
            except ObjectMissing:
                # Some stores stop at the first that is gone, and leave others.
                await together(self._delete_one(key) for key in page)

    async def _delete_one(self, key: str) -> None:
        with suppress(ObjectMissing):
            async with self._request("delete", key):
                await self._store.delete_async(key)

    @asynccontextmanager
    async def _request(self, kind: str, key: str, size: int = 0) -> AsyncIterator[None]:
        """One request: in its turn, in time, and with errors of ours."""
        from obstore.exceptions import BaseError

        _refuse_after_fork()
        limit = self.location.timeout + size / _SLOWEST
        async with self._large if size > LARGE else self._slots:
            self.requests[kind] += 1
            began, done = perf_counter(), 0
            try:
                async with asyncio.timeout(limit):
                    yield
                done = size
            except TimeoutError:
                raise ObjectsUnavailable(
                    f"object store {self.location.where}: expected an answer in {limit:.3g} s, got none; "
                    "check that it runs and can be reached from here, or give its URL a longer timeout"
                ) from None
            except (BaseError, OSError, ValueError) as error:
                # Not as a cause: what obstore says quotes URLs, and those may hold secrets.
                raise _translated(error, self.location, kind, key) from None
            finally:
                if self._timed is not None:
                    self._timed(kind, perf_counter() - began, done if kind == "create" else 0)


class _Taken(HeadraceError):
    """A key that is to be created has an object."""


class _Beyond(HeadraceError):
    """A range begins behind the end of its object."""


def spans(ranges: Iterable[Range]) -> list[list[Range]]:
    """The ranges in groups, each to be read in one request: near one another, and not large unless one alone is.

    >>> spans([Range(0, 10), Range(10, 10), Range(900_000, 5), Range(0, 10)])
    [[Range(offset=0, length=10), Range(offset=10, length=10)], [Range(offset=900000, length=5)]]
    """
    groups: list[list[Range]] = []
    end = 0
    for one in sorted({one for one in ranges if one.length}):
        if groups and one.offset <= end + _NEAR and max(end, one.end) - groups[-1][0].offset <= LARGE:
            groups[-1].append(one)
            end = max(end, one.end)
        else:
            groups.append([one])
            end = one.end
    return groups


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Work on all items, as many at once as there are requests under way. The first error ends it and is raised."""
    todo = iter(items)

    async def share() -> None:
        for item in todo:
            await work(item)

    await together(share() for _ in range(_AT_ONCE))


async def together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All answers. The first error ends the other calls and is raised alone."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _translated(error: Exception, location: Location, kind: str, key: str) -> HeadraceError:
    from obstore import exceptions

    told, where = str(error), location.where
    if isinstance(error, exceptions.AlreadyExistsError) and kind == "create":
        return _Taken()
    if isinstance(error, FileNotFoundError):
        if _NO_BUCKET.search(told):
            return _no_bucket(location)
        return ObjectMissing(
            f"object {key}: expected in {where}, but it is not there; something else than Headrace has deleted it, "
            "such as a lifecycle rule that is too short"
        )
    if _BEYOND.search(told):
        return _Beyond()
    if location.scheme == "file":
        return ObjectsUnavailable(f"object store {where}: cannot {kind} {key}: {told.partition(chr(10))[0]}")
    answers = [found[1] for found in (_STATUS.search(told), _CODE.search(told)) if found]
    answer = " ".join(answers)
    refused = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
    if refused or _WRONG_REGION in told or (answers and not _PASSING.search(answer)):
        return ObjectsRefused(
            f"object store {where}: refused to {kind} ({answer or type(error).__name__}); check the credentials, that "
            "they may create, read, list and delete under this prefix, and the bucket, region and endpoint"
        )
    return ObjectsUnavailable(
        f"object store {where}: expected an answer to {kind}, got {answer or 'no connection'}; "
        "check that it runs and can be reached from here"
    )


def _no_bucket(location: Location) -> ObjectsRefused:
    return ObjectsRefused(f"object store {location.where}: expected a bucket, got none of that name; create it")


def _make_durable(root: Path, key: str) -> None:
    """Write a file, and that it is in its directory, through to the disk: obstore leaves both to the system."""
    path = root / key
    for one in (path, *path.parents[: len(path.parents) - len(root.parents)]):
        file = os.open(one, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


_used = False
_forked = False


def _refuse_after_fork() -> None:
    global _used
    if _forked:
        raise ConfigError(
            "objects were used before this process was forked, and cannot be used after; "
            "start processes with spawn, or fork before the client is opened"
        )
    _used = True


def _remember_fork() -> None:
    global _forked
    _forked = _used


in_child(_remember_fork)
