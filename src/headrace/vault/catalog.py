"""The catalog: which files a vault has, small ones put together, and whether all of them are sound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from headrace.errors import HeadraceError
from headrace.payloads.objects import Objects, Range
from headrace.vault.layout import JOBS, PageFile, counting, folder_of, read_key
from headrace.vault.tables import arrow, decode, encode

if TYPE_CHECKING:
    import pyarrow as pa

_LARGEST = 256 * 1024 * 1024
"""Files are put together up to about this many bytes."""
_ORDER = ("ended_at", "id", "epoch")


class Compacted(NamedTuple):
    """What a compaction did."""

    made: int
    removed: int


class Verified(NamedTuple):
    """What a look at all files found."""

    files: int
    jobs: int
    problems: list[str]


class Catalog:
    """The files of the jobs in a vault."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def files(self, since: int | None = None, until: int | None = None) -> list[PageFile]:
        """The files that count, of the hours between two instants, oldest first."""
        return counting(await self._all(since, until))[0]

    async def _all(self, since: int | None = None, until: int | None = None) -> list[PageFile]:
        low = "" if since is None else folder_of(JOBS, since)
        high = "~" if until is None else folder_of(JOBS, until)
        found = [file async for file in self._listed(low, high)]
        return [file for file in found if low <= file.folder <= high]

    async def _listed(self, low: str, high: str) -> AsyncIterator[PageFile]:
        for date in await self._objects.folders(JOBS):
            folder = f"{JOBS}/{date}"
            if folder < low[: len(folder)] or folder > high:
                continue
            async for page in self._objects.pages(folder):
                for one in page:
                    if file := read_key(one.key, one.size):
                        yield file

    async def load(self, file: PageFile, columns: tuple[str, ...] | None = None) -> pa.Table:
        """The jobs of a file."""
        return decode(await self.body(file), columns)

    async def body(self, file: PageFile) -> bytes:
        """A file as it is stored."""
        [body] = await self._objects.read(file.key, [Range(0, file.size)])
        return body

    async def compact(self, before: int) -> Compacted:
        """Put the small files of hours before an instant together, and delete what they are made of.

        The new file is there before the others go, and they no longer count from then on: whenever it stops, every job
        is in the vault once.
        """
        kept, covered = counting(await self._all(None, before - 3_600_000_000))
        made = 0
        for _, group in groupby(kept, key=lambda one: (one.folder, one.state)):
            for few in _portions(list(group)):
                await self._join(few)
                covered += few
                made += 1
        await self._objects.delete([file.key for file in covered])
        return Compacted(made, len(covered))

    async def _join(self, files: list[PageFile]) -> None:
        tables = [await self.load(file) for file in files]
        body = await asyncio.to_thread(lambda: encode(arrow().concat_tables(tables, promote_options="default")))
        first, last = files[0], files[-1]
        await self._objects.create(f"{first.folder}/{first.state}-{first.first}-{last.last}.parquet", body)

    async def verify(self) -> Verified:
        """Read all files: whether each has the jobs that its name says, and no job is in two."""
        files = await self.files()
        problems: list[str] = []
        jobs, seen = 0, dict[tuple[str, str], str]()
        for file in files:
            before = seen.get((file.folder, file.state))
            if before is not None and before >= file.first:
                problems.append(f"{file.key}: begins before the file in front of it ends; some jobs may be in both")
            seen[file.folder, file.state] = file.last
            try:
                table = await self.load(file, _ORDER)
            except (HeadraceError, ValueError, OSError) as error:
                problems.append(f"{file.key}: cannot be read: {error}")
                continue
            jobs += table.num_rows
            problems += [f"{file.key}: {problem}" for problem in _check(file, table)]
        return Verified(len(files), jobs, problems)


def _portions(files: list[PageFile]) -> list[list[PageFile]]:
    """The files in runs to be put together: at least two, and not too large."""
    runs: list[list[PageFile]] = [[]]
    size = 0
    for file in files:
        if runs[-1] and size + file.size > _LARGEST:
            runs.append([])
            size = 0
        runs[-1].append(file)
        size += file.size
    return [run for run in runs if len(run) > 1]


def _check(file: PageFile, table: pa.Table) -> list[str]:
    rows = list(zip(*(table.column(name).to_pylist() for name in _ORDER), strict=True))
    digits = [f"{round(at.timestamp() * 1e6):016x}{UUID(job).hex}{epoch:016x}" for at, job, epoch in rows]
    problems = []
    if digits != sorted(digits) or len(set(digits)) != len(digits):
        problems.append("its jobs are out of order, or one is in it twice")
    if not digits or (digits[0], digits[-1]) != (file.first, file.last):
        problems.append("its first or last job is another than its name says")
    return problems
