"""The pipeline: a hunter finds videos, a tracker counts views, a scribe reads texts, a janitor cleans up."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from msgspec import Struct
from video_api import VideoApi

from headrace import App, Crawler, Cursor, Subject, Table, Tracker, Visited

TIERS = {"HOURLY": "1h", "DAILY": "1d", "WEEKLY": "7d"}
DAY = timedelta(days=1)


class Video(Struct):
    """A row of the hot table. It is rich, and goes after a week."""

    id: str
    title: str
    channel: str
    description: str
    published_at: datetime
    words: int | None = None
    """What the scribe found out; until then, the row is not deleted."""
    discovered_at: datetime | None = None


class Discovery:
    """The pipeline on an app that has a vault."""

    def __init__(self, app: App, api: VideoApi, *, keep: str = "7d", tiers: Mapping[str, str] = TIERS) -> None:
        self.app = app
        self._api = api
        self._tiers = list(tiers)
        self.videos: Table[Video] = app.table(
            "videos", Video, keep=keep, age="discovered_at", processed="words", keep_unprocessed="14d",
            archive=app.vault, sweep="1h", queue="janitor",
        )  # fmt: skip
        self.watch: Tracker = app.tracker("watch", self.track, tiers, results=app.vault, queue="tracker")
        self.hunt: Crawler = app.crawler("hunt", self.search, every="1h", queue="hunter")
        self.scribe = app.task(self._scribe, name="scribe", queue="scribe")

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.app.client.clock.now() / 1e6, UTC)

    async def search(self, cursor: Cursor) -> str | None:
        """The hunter: keep the videos of a page, have them tracked and read."""
        found, token = self._api.search(cursor.term, cursor.token, self._now())
        rows = [Video(one.id, one.title, one.channel, one.description, one.published_at) for one in found]
        await self.videos.put_many(rows)
        await self.watch.add_many(row.id for row in rows)
        await self.scribe.enqueue({row.id: row.description for row in rows})
        return token

    async def track(self, subjects: list[Subject]) -> Visited:
        """The tracker: count views, less often as a video ages. It goes on when the row is gone."""
        now = self._now()
        views = self._api.views([one.id for one in subjects], now)
        return Visited(
            move={one.id: tier for one in subjects if one.id in views and (tier := self._tier(one, now)) != one.tier},
            stop=[one.id for one in subjects if one.id not in views],
            rows=[{"id": one, "at": now, "views": seen} for one, seen in views.items()],
        )

    def _tier(self, subject: Subject, now: datetime) -> str:
        age = now - subject.added_at
        return self._tiers[0 if age < DAY else min(1 if age < 7 * DAY else 2, len(self._tiers) - 1)]

    async def _scribe(self, texts: dict[str, str]) -> None:
        """The scribe: read texts, and note in the rows what they tell."""
        await self.videos.update_many({"id": one, "words": len(text.split())} for one, text in texts.items())
