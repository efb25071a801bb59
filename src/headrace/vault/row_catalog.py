"""Files with rows of the user's own: which count, small ones put together, and whether all of them are sound.

A file is ``TABLE/date=2026-11-18/hour=05/NAME.parquet``. One that was made of others is named ``compacted-…`` and says
in its metadata which names it stands for. A file of one of these names does not count: it is about to be deleted, or
somebody slow has written it again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.errors import HeadraceError
from headrace.payloads.objects import Objects, Range
from headrace.vault.layout import JOBS, folder_of
from headrace.vault.tables import arrow, decode, encode

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("headrace")

COMPACTED = "compacted-"
_LARGEST = 256 * 1024 * 1024
"""Files are put together up to about this many bytes."""
_NAMES = b"headrace:names"
_KEY = re.compile(r"(?:.*/)?date=\d{4}-\d\d-\d\d/hour=\d\d/([^/]+)\.parquet")


class RowFile(NamedTuple):
    """A file with rows of one table and hour."""

    key: str
    folder: str
    name: str
    size: int

    @property
    def compacted(self) -> bool:
        """Whether it was made of others."""
        return self.name.startswith(COMPACTED)


class RowCatalog:
    """The files of all tables but that of the jobs."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def tables(self) -> list[str]:
        """The names of the tables."""
        return [one for one in await self._objects.folders("") if one != JOBS]

    async def files(self, table: str, since: int | None = None, until: int | None = None) -> list[RowFile]:
        """The files of a table that count, of the hours between two instants, oldest first."""
        return [file for _, kept, _ in await self._hours(table, since, until) for file in kept]

    async def compact(self, before: int) -> tuple[int, int]:
        """Put the small files of hours before an instant together: how many were made, and how many deleted.

        The new file is there before the others go, and they no longer count from then on: whenever it stops, every row
        is in the vault once.
        """
        made, gone = 0, list[RowFile]()
        for table in await self.tables():
            for folder, kept, covered in await self._hours(table, None, before - 3_600_000_000):
                gone += covered
                for few in _portions(kept):
                    if await self._join(folder, few):
                        gone += few
                        made += 1
        await self._objects.delete([file.key for file in gone])
        return made, len(gone)

    async def verify(self) -> tuple[int, list[str]]:
        """Read all files: how many there are, and which cannot be read."""
        count, problems = 0, list[str]()
        for table in await self.tables():
            for file in await self.files(table):
                count += 1
                try:
                    decode(await self._body(file))
                except (HeadraceError, ValueError, OSError) as error:
                    problems.append(f"{file.key}: cannot be read: {error}")
        return count, problems

    async def _hours(
        self, table: str, since: int | None, until: int | None
    ) -> list[tuple[str, list[RowFile], list[RowFile]]]:
        """By folder: the files that count, and those that others stand for."""
        low = f"{table}/" if since is None else folder_of(table, since)
        high = f"{table}/~" if until is None else folder_of(table, until)
        found = [file async for file in self._listed(table, low, high) if low <= file.folder <= high]
        hours = []
        for folder, group in groupby(sorted(found), key=lambda one: one.folder):
            files = list(group)
            hidden = await self._hidden(files)
            kept = [file for file in files if file.name not in hidden]
            hours.append((folder, kept, [file for file in files if file.name in hidden]))
        return hours

    async def _listed(self, table: str, low: str, high: str) -> AsyncIterator[RowFile]:
        for date in await self._objects.folders(table):
            folder = f"{table}/{date}"
            if not date.startswith("date=") or folder < low[: len(folder)] or folder > high:
                continue
            async for page in self._objects.pages(folder):
                for one in page:
                    if found := _KEY.fullmatch(one.key):
                        yield RowFile(one.key, one.key.rpartition("/")[0], found[1], one.size)

    async def _hidden(self, files: Sequence[RowFile]) -> set[str]:
        """The names that other files stand for. Where there is but one file, nobody has to look."""
        if len(files) == 1:
            return set()
        return {name for file in files if file.compacted for name in _names(decode(await self._body(file), ()))}

    async def _join(self, folder: str, files: Sequence[RowFile]) -> bool:
        tables = [decode(await self._body(file)) for file in files]
        pa = arrow()
        try:
            whole = pa.concat_tables(tables, promote_options="permissive")
        except pa.ArrowInvalid as error:
            log.warning("the files in %s stay as they are, as their columns do not go together: %s", folder, error)
            return False
        names = sorted(
            {name for file, table in zip(files, tables, strict=True) for name in (file.name, *_names(table))}
        )
        whole = whole.replace_schema_metadata({_NAMES: msgspec.json.encode(names)})
        digest = blake2b(msgspec.json.encode(names), digest_size=16).hexdigest()
        await self._objects.create(f"{folder}/{COMPACTED}{digest}.parquet", await asyncio.to_thread(encode, whole))
        return True

    async def _body(self, file: RowFile) -> bytes:
        [body] = await self._objects.read(file.key, [Range(0, file.size)])
        return body


def _names(table: pa.Table) -> list[str]:
    """The names that a file stands for."""
    found = (table.schema.metadata or {}).get(_NAMES)
    return [] if found is None else msgspec.json.decode(found, type=list[str])


def _portions(files: Iterable[RowFile]) -> list[list[RowFile]]:
    """The files in groups to be put together: at least two, and not too large."""
    groups: list[list[RowFile]] = [[]]
    size = 0
    for file in files:
        if groups[-1] and size + file.size > _LARGEST:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return [group for group in groups if len(group) > 1]
