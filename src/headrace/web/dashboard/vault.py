"""The page about the vault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import ConfigError
from headrace.keeping.archive_marks import MARKS, Marks, read_marks
from headrace.keeping.bounds import ENDED
from headrace.seam.instants import datetime_or_none
from headrace.vault.vault import VaultFile
from headrace.web.dashboard.pages import Page, PageSet

_DAYS = 60
EXAMPLES = (
    "SELECT task, state, count(*) AS jobs FROM jobs GROUP BY ALL ORDER BY jobs DESC",
    "SELECT queue, quantile_cont(epoch_ms(ended_at - enqueued_at), 0.95) AS p95_ms FROM jobs GROUP BY queue",
)


class Day(Struct, frozen=True):
    """The files of one day."""

    date: str
    files: int
    bytes: int
    states: list[str]


class Lag(Struct, frozen=True):
    """How far the vault is behind, for one state."""

    state: str
    archived_until: datetime | None
    waiting_since: datetime | None
    """The end of the oldest job that is not archived; None: all are."""


class VaultPage(PageSet):
    """The page."""

    def paths(self) -> Mapping[str, Page]:
        return {"/vault": self.vault}

    async def vault(self, request: Request) -> Response:
        admin = self._admin
        url = admin.client.settings.vault.url
        missing = [name for name in ("duckdb", "obstore", "pyarrow") if find_spec(name) is None]
        files: Sequence[VaultFile] = []
        if url is not None and not missing:
            files = await admin.upkeep.vault.files()
        return await self._pages.show(
            request,
            "vault.html",
            url=url and url.partition("?")[0],
            missing=missing,
            days=by_day(files)[:_DAYS],
            files=len(files),
            bytes=sum(file.bytes for file in files),
            lags=await self._lags() if url is not None else [],
            examples=EXAMPLES,
        )

    async def _lags(self) -> list[Lag]:
        client = self._admin.client
        backend = await client.backend()
        if backend.documents is None or backend.archive is None:
            raise ConfigError("this store has no vault")
        [document] = await backend.documents.get([MARKS])
        marks = read_marks(document) or Marks()
        found = []
        for state in ENDED:
            mark = marks.of(state).mark
            page = await backend.archive.ended(state, mark, 1, at=client.clock.stamp())
            since = datetime_or_none(page.records[0].finished_at) if page.records else None
            found.append(Lag(state.value, datetime_or_none(None if mark is None else mark.ended_at), since))
        return found


def by_day(files: Sequence[VaultFile]) -> list[Day]:
    """Files added up by day, latest first."""
    days: dict[str, list[VaultFile]] = {}
    for file in files:
        day = next((part[5:] for part in file.key.split("/") if part.startswith("date=")), "?")
        days.setdefault(day, []).append(file)
    return [
        Day(day, len(of), sum(file.bytes for file in of), sorted({file.state for file in of}))
        for day, of in sorted(days.items(), reverse=True)
    ]
