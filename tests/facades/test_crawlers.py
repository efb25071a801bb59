"""Crawlers on every store, on a clock that stands still until it is moved."""

from __future__ import annotations

from headrace import App, Crawler, Cursor
from headrace.core.clock import ManualClock
from headrace.seam.records import Claim
from tests.facades.harness import Store, within

LEASE = 30_000_000


class Site:
    """Five pages for every term; remembers what was read."""

    def __init__(self) -> None:
        self.read: list[tuple[str, str | None]] = []

    async def page(self, cursor: Cursor) -> str | None:
        self.read.append((cursor.term, cursor.token))
        number = int(cursor.token or 0)
        return str(number + 1) if number < 4 else None

    def of(self, term: str) -> list[str | None]:
        return [token for one, token in self.read if one == term]


def crawling(store: Store, clock: ManualClock, site: Site, pause: str = "1m") -> tuple[App, Crawler]:
    app = store.app(clock=clock)
    return app, app.crawler("hunt", site.page, every="1h", pause=pause, queue="hunting")


async def test_pages_are_read_to_the_last_and_then_again(store: Store) -> None:
    clock, site = ManualClock(), Site()
    app, hunt = crawling(store, clock, site, pause="0s")
    async with app:
        assert await hunt.add_many(["cats", "dogs", "cats"]) == 2
        assert await hunt.add("soon", priority=1)
        await within(app.drain())
        assert site.read[0] == ("soon", None)
        assert site.of("cats") == site.of("dogs") == [None, "1", "2", "3", "4"]
        found = await hunt.get("cats")
        assert found is not None
        assert (found.token, found.pages) == (None, 5)
        assert found.last_searched_at is not None
        assert abs(found.last_searched_at.timestamp() * 1e6 - clock.now()) < 1e6
        clock.advance("1h")
        await within(app.drain())
        assert len(site.of("cats")) == 10
        assert await hunt.remove("cats")
        clock.advance("1h")
        await within(app.drain())
        assert (len(site.of("cats")), len(site.of("dogs"))) == (10, 15)


async def test_whatever_dies_between_two_pages_or_in_one_no_page_is_skipped(store: Store) -> None:
    """Each process reads a page, and the next one takes a page and vanishes."""
    clock, read = ManualClock(), Site()
    for page in range(5):
        app, hunt = crawling(store, clock, read)
        async with app:
            if not page:
                await hunt.add("cats")
            backend = await app.client.backend()
            lost = await backend.claim(Claim(f"vanished {page}", ("hunting",), 1, LEASE), clock.stamp())
            assert len(lost.jobs) == 1
            await within(app.drain())
            assert len(read.read) == page, "it is held by one who has vanished"
            clock.advance("1m")
            await within(app.drain())
            clock.advance("1m")
    assert read.of("cats") == [None, "1", "2", "3", "4"]
