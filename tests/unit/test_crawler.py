"""Crawlers: cursors that never end, on the memory store in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import App, Crawler, Cursor
from headrace.errors import ConfigError, InvalidJob
from headrace.testing.jobs import in_memory


class Site:
    """Three pages for every term; remembers what was read."""

    def __init__(self) -> None:
        self.read: list[tuple[str, str | None]] = []
        self.fails = 0

    async def page(self, cursor: Cursor) -> str | None:
        if self.fails:
            self.fails -= 1
            raise RuntimeError("no answer")
        self.read.append((cursor.term, cursor.token))
        number = int(cursor.token or 0)
        return str(number + 1) if number < 2 else None


def crawling(**given: Any) -> tuple[App, Crawler, Site]:
    app, site = App("memory://"), Site()
    return app, app.crawler("hunt", site.page, every="1h", **given), site


async def test_pages_are_read_to_the_last_and_then_again() -> None:
    app, hunt, site = crawling()
    with in_memory(app) as jobs:
        assert await hunt.add("cats")
        assert not await hunt.add("cats")
        await jobs.drain()
        assert site.read == [("cats", None), ("cats", "1"), ("cats", "2")]
        found = await hunt.get("cats")
        assert found is not None
        assert (found.token, found.pages, found.priority) == (None, 3, 5)
        assert found.last_searched_at is not None
        jobs.clock.advance("59m")
        await jobs.drain()
        assert len(site.read) == 3
        jobs.clock.advance("1m")
        await jobs.drain()
        assert len(site.read) == 6


async def test_urgent_terms_come_first() -> None:
    app, hunt, site = crawling(pause="1m")
    with in_memory(app) as jobs:
        await hunt.add("late", priority=9)
        await hunt.add("soon", priority=1)
        assert await hunt.add_many(["a", "b", "a", "soon"]) == 2
        await jobs.drain()
        assert [term for term, _ in site.read] == ["soon", "a", "b", "late"]
        assert {one.term: one.token for one in [c async for c in hunt.cursors()]} == dict.fromkeys(
            ["soon", "a", "b", "late"], "1"
        )


async def test_a_page_that_fails_is_read_again_for_ever() -> None:
    app, hunt, site = crawling(pause="1s")
    with in_memory(app) as jobs:
        await hunt.add("cats")
        await jobs.drain()
        site.fails = 40
        while site.fails:
            jobs.clock.advance("1d")
            await jobs.drain()
        jobs.clock.advance("1d")
        await jobs.drain()
        assert ("cats", "1") in site.read


async def test_a_term_can_be_removed() -> None:
    app, hunt, _ = crawling()
    with in_memory(app):
        await hunt.add("cats")
        assert await hunt.remove("cats")
        assert not await hunt.remove("cats")
        assert await hunt.get("cats") is None


async def test_what_is_refused() -> None:
    app, hunt, _ = crawling()
    with pytest.raises(ConfigError, match="async function"):
        app.crawler("plain", lambda cursor: None, every="1h")  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigError):
        app.crawler("other", Site().page, every="soon")
    with in_memory(app) as jobs:
        with pytest.raises(ConfigError, match="list of terms"):
            await hunt.add_many("cats")
        with pytest.raises(InvalidJob):
            await hunt.add("")

        async def wrong(cursor: Cursor) -> Any:
            return 7

        other = app.crawler("wrong", wrong, every="1h")
        await other.add("x")
        await jobs.drain()
        found = await other.get("x")
        assert found is not None
        assert found.pages == 0
