"""A video site that exists only here: every search term has new videos every hour, and every video gets views."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from hashlib import blake2b

from msgspec import Struct

PAGE = 50
"""Videos on one page of a search."""


class Found(Struct, frozen=True):
    """A video as a search tells of it."""

    id: str
    title: str
    channel: str
    description: str
    published_at: datetime


class VideoApi:
    """``hourly`` new videos for each term. The same question always has the same answer."""

    def __init__(self, hourly: int) -> None:
        self._hourly = hourly
        self.calls = 0

    def search(self, term: str, token: str | None, now: datetime) -> tuple[list[Found], str | None]:
        """A page of the videos of this hour, and the token of the next page."""
        self.calls += 1
        hour = now.replace(minute=0, second=0, microsecond=0) if token is None else _hour(token)
        first = 0 if token is None else int(token.partition(":")[2])
        last = min(first + PAGE, self._hourly)
        videos = [_video(term, hour, number) for number in range(first, last)]
        return videos, f"{hour:%Y%m%d%H}:{last}" if last < self._hourly else None

    def views(self, ids: list[str], now: datetime) -> dict[str, int]:
        """How often videos were seen by now. A few are gone."""
        self.calls += 1
        born = int(now.timestamp()) // 3_600
        return {one: _number(one) % 1_000 * (born % 10_000) for one in ids if _number(one) % 997}


def _hour(token: str) -> datetime:
    return datetime.strptime(token.partition(":")[0], "%Y%m%d%H").replace(tzinfo=UTC)


def _video(term: str, hour: datetime, number: int) -> Found:
    digest = blake2b(f"{term} {hour:%Y%m%d%H} {number}".encode(), digest_size=9).digest()
    name = urlsafe_b64encode(digest).decode()[:11]
    text = f"All about {term}, part {number}. " * 6
    return Found(name, f"{term} {number}", f"channel {number % 97}", text, hour)


def _number(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=4).digest())
