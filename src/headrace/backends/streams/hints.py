"""Hints of both servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress

from headrace.backends.postgres.hints import each
from headrace.backends.redis.hints import Listener as WindowListener
from headrace.errors import BackendError
from headrace.seam.protocol import Hints
from headrace.seam.records import Hint

_REST = 1.0
"""Seconds after which Valkey is asked again, once it did not answer."""


class BothHints:
    """Valkey tells of queues, PostgreSQL of all topics: of queues, what was enqueued in a transaction of the user's
    own. While Valkey is away, PostgreSQL's hints go on."""

    def __init__(self, truth: Hints, windows: WindowListener) -> None:
        self._truth = truth
        self._windows = windows

    @asynccontextmanager
    async def listen(self, topics: Collection[str]) -> AsyncIterator[AsyncIterator[Hint]]:
        queues = [topic for topic in topics if topic.startswith("queue:")]
        news: asyncio.Queue[Hint | Exception] = asyncio.Queue()
        tasks: list[asyncio.Task[None]] = []
        async with self._truth.listen(topics) as heard:
            try:
                tasks.append(asyncio.get_running_loop().create_task(_pass_on(heard, news), name="headrace-hear"))
                if queues:
                    ready = asyncio.Event()
                    tasks.append(
                        asyncio.get_running_loop().create_task(self._signals(queues, news, ready), name="headrace-hear")
                    )
                    await ready.wait()
                yield each(news)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _signals(self, queues: list[str], news: asyncio.Queue[Hint | Exception], ready: asyncio.Event) -> None:
        while True:
            with suppress(BackendError):
                async with self._windows.listen(queues) as heard:
                    ready.set()
                    async for hint in heard:
                        news.put_nowait(hint)
            ready.set()
            for topic in queues:
                news.put_nowait(Hint(topic))
            await asyncio.sleep(_REST)


async def _pass_on(heard: AsyncIterator[Hint], news: asyncio.Queue[Hint | Exception]) -> None:
    try:
        async for hint in heard:
            news.put_nowait(hint)
    except BackendError as error:
        news.put_nowait(error)
