"""A crawler: durable cursors that are read page by page, again and again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
from msgspec import Struct

from headrace.api.registered import TaskOwner
from headrace.api.task import Task
from headrace.api.tracker import TrackerOptions
from headrace.core.callables import is_async
from headrace.core.durations import micros
from headrace.core.names import check_name, refuse_unknown
from headrace.core.walks import walk
from headrace.errors import ConfigError
from headrace.payloads.codec import Envelope
from headrace.seam.instants import to_datetime
from headrace.seam.records import Delete, InsertStatus, JobKey, Record, Selector
from headrace.text import shown
from headrace.types import Again, Duration, Patch, Sections
from headrace.worker.job import Job
from headrace.worker.retry import forever

FIRST = 5
"""The priority of a cursor unless another is given; lower numbers come first."""


class Cursor(Struct, frozen=True):
    """Where a crawler is in one of its terms.

    >>> Cursor("cats", token="CAUQAA", priority=5, created_at=datetime(2026, 11, 18, tzinfo=UTC)).token
    'CAUQAA'
    """

    term: str
    """What is searched for; unique in a crawler."""
    token: str | None = None
    """The page that comes next; None: the first one."""
    priority: int = FIRST
    created_at: datetime | None = None
    last_searched_at: datetime | None = None
    pages: int = 0
    """Pages that were read so far, over all rounds."""


ReadPage = Callable[[Cursor], Awaitable[str | None]]


class Crawler:
    """Durable cursors. The handler reads one page of a cursor and returns the token of the next page, or None after the
    last one; then the cursor begins again after ``every``.

    >>> import asyncio
    >>> from headrace import App, Cursor
    >>> app = App("memory://")
    >>> async def search(cursor: Cursor) -> str | None:
    ...     return "page 2" if cursor.token is None else None
    >>> hunt = app.crawler("hunt", search, every="1h")
    >>> async def main():
    ...     async with app:
    ...         await hunt.add("cats", priority=1)
    ...         await app.drain()
    ...         return await hunt.get("cats")
    >>> found = asyncio.run(main())
    >>> found.token, found.pages, found.priority
    (None, 2, 1)
    """

    def __init__(
        self,
        owner: TaskOwner,
        name: str,
        handler: ReadPage,
        every: Duration,
        pause: Duration,
        options: TrackerOptions,
    ) -> None:
        self.name = check_name(name, "crawler")
        self._where = f"crawler {shown(name)}"
        if not callable(handler) or not is_async(handler):
            raise ConfigError(f"{self._where}: expected an async function of a cursor, got {shown(handler)}")
        refuse_unknown(options, [*TrackerOptions.__annotations__], f"{self._where}: option")
        self._owner = owner
        self._handler = handler
        self._every = every
        self._pause = pause
        micros(every, f"{self._where}: every")
        micros(pause, f"{self._where}: pause")
        given = cast("Any", {"priority": FIRST, "retry": forever(), **options, "result_ttl": 0})
        self.reading: Task[[str, str | None, str | None, int], None] = Task(
            owner, self._page(), f"crawler:{name}", given
        )
        """The task whose jobs read pages. A cursor is a job that never ends: its key is the term."""

    def __repr__(self) -> str:
        return f"Crawler({self.name!r})"

    def _page(self) -> Callable[..., Awaitable[Again]]:
        async def read_page(
            job: Job[Any], term: str, token: str | None = None, last: str | None = None, pages: int = 0
        ) -> Again:
            found = Cursor(term, token, job.priority, job.enqueued_at, _moment(last), pages)
            following = await self._handler(found)
            if following is not None and not isinstance(following, str):
                raise ConfigError(
                    f"{self._where}: expected its handler to return the token of the next page or None, got "
                    f"{shown(following)}"
                )
            now = datetime.fromtimestamp(self._owner.client.clock.now() / 1e6, UTC)
            state = {"term": term, "token": following, "last": now.isoformat(), "pages": pages + 1}
            after = self._every if following is None else self._pause
            return Again(after, Patch(sections=Sections(parameters=msgspec.json.encode(state))))

        return read_page

    async def add(self, term: str, *, priority: int | None = None) -> bool:
        """Search for a term from now on. False: it is there already, and stays where it is."""
        return await self.add_many([term], priority=priority) == 1

    async def add_many(self, terms: Iterable[str], *, priority: int | None = None) -> int:
        """Search for terms; returns how many are new."""
        if isinstance(terms, str):
            raise ConfigError(f"{self._where}: expected a list of terms, got the text {shown(terms)}")
        jobs = [self._keyed(check_name(term, f"{self._where}: term"), priority) for term in dict.fromkeys(terms)]
        answers = await self._owner.client.insert(jobs)
        return sum(answer.status is InsertStatus.NEW for answer in answers)

    def _keyed(self, term: str, priority: int | None) -> Any:
        options: dict[str, Any] = {"key": self._key(term)}
        if priority is not None:
            options["priority"] = priority
        return self.reading.options(**options).job(term, None, None, 0)

    def _key(self, term: str) -> str:
        key = f"{self.name}/{term}"
        return check_name(key, f"{self._where}: term")

    async def remove(self, term: str) -> bool:
        """Search for a term no more, unless a page of it is being read just now. False: it is still there, or was
        not."""
        key = JobKey(self.reading.queue, self._key(term))
        altered = await self._owner.client.alter(Selector(keys=[key]), Delete())
        return bool(altered) and altered[0].after is None

    async def get(self, term: str) -> Cursor | None:
        """Where it is; None: there is no such cursor."""
        client = self._owner.client
        record = await client.fetch(JobKey(self.reading.queue, self._key(term)))
        return None if record is None else _cursor(record, client.packer.envelope)

    async def cursors(self) -> AsyncIterator[Cursor]:
        """All cursors, newest first. One that moves on meanwhile is told as it was or as it is."""
        client, sel = self._owner.client, Selector(queue=self.reading.queue, task=self.reading.name)
        pages = walk(await client.backend(), sel, client.clock, page=100, want=frozenset({"parameters"}))
        async for records in pages:
            for record in records:
                yield _cursor(record, client.packer.envelope)


def _cursor(record: Record, envelope: Envelope) -> Cursor:
    cell = record.cells.get("parameters")
    state = (
        {} if cell is None else msgspec.json.decode(envelope.unwrap(cell, "parameters", record.id, record.tenant)[1])
    )
    return Cursor(
        str(state.get("term", "")),
        state.get("token"),
        record.priority,
        to_datetime(record.enqueued_at),
        _moment(state.get("last")),
        int(state.get("pages", 0)),
    )


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
