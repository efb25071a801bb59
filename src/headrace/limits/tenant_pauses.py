"""Pauses of tenants in all queues of a store, those to come included.

A store pauses a tenant in a queue. This keeps a document beside that, of tenants that are paused everywhere: whoever
pauses one writes the document first, then pauses it in every queue that has jobs or a worker. A worker that starts
reads the document, and pauses these tenants in its queues. So they are paused there before anybody serves the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from headrace.core.clock import Clock
from headrace.core.documents import TypedDocument
from headrace.errors import ConfigError
from headrace.seam.documents import DocumentStore
from headrace.seam.policy import FOREVER, QueuePause
from headrace.seam.protocol import Backend, PolicyStore
from headrace.text import shown

MOST = 1_000
"""Tenants that can be paused everywhere at a time."""
EXCEPTIONS = 1_000
"""Queues in which they can be resumed alone, over all tenants: the document has a bound."""
_AT_ONCE = 16
"""Queues that are paused or resumed at the same time."""


class _Paused(Struct, frozen=True, omit_defaults=True):
    until: int
    but: list[str] = []
    """Queues in which it was resumed since."""


_Book = dict[str, _Paused]
_BOOK = TypedDocument[_Book]("tenants-paused", _Book, {})


class TenantPauses:
    """The tenants that are paused everywhere."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock

    async def pause(self, tenant: str, lasts: int | None) -> Sequence[str]:
        """Pause a tenant everywhere. Returns the queues that there are now. Doing it again does what was left over."""
        documents, now = self._documents(), await self._backend.now(self._clock.stamp())
        until = FOREVER if lasts is None else now + lasts

        def paused(book: _Book) -> _Book:
            book = {name: one for name, one in book.items() if one.until > now} | {tenant: _Paused(until)}
            if len(book) > MOST:
                raise ConfigError(
                    f"at most {MOST:,} tenants can be paused in all queues, got one more: {shown(tenant)}"
                )
            return book

        await _BOOK.change(documents, paused)
        queues = await self._queues()
        policies = self._policies()

        async def pause(queue: str) -> None:
            await policies.pause(QueuePause(queue, tenant, None, True, lasts), self._clock.stamp())

        await _each(queues, pause)
        return queues

    async def resume(self, tenant: str) -> Sequence[str]:
        """Resume a tenant in all queues, however it was paused there. Returns those in which it was paused."""
        await _BOOK.change(self._documents(), lambda book: {name: one for name, one in book.items() if name != tenant})
        resumed: list[str] = []
        policies = self._policies()

        async def resume(queue: str) -> None:
            found = await policies.tenants(queue, [tenant], None, 1, self._clock.stamp())
            if any(one.paused_until is not None for one in found):
                await policies.pause(QueuePause(queue, tenant, None, False), self._clock.stamp())
                resumed.append(queue)

        await _each(await self._queues(), resume)
        return sorted(resumed)

    async def spare(self, tenant: str, queue: str) -> None:
        """It was resumed in one queue, and workers must not pause it there again."""
        if self._backend.documents is None:
            return

        def spared(book: _Book) -> _Book:
            one = book.get(tenant)
            if one is None or queue in one.but:
                return book
            if sum(len(other.but) for other in book.values()) >= EXCEPTIONS:
                raise ConfigError(
                    f"tenants that are paused in all queues were resumed in {EXCEPTIONS:,} queues alone, and no more "
                    f"can be noted; {shown(tenant)} stays paused in {shown(queue)}: resume it in all queues"
                )
            return book | {tenant: replace(one, but=[*one.but, queue])}

        await _BOOK.change(self._backend.documents, spared)

    async def find(self) -> dict[str, int]:
        """The tenants, and until when they are paused."""
        now = await self._backend.now(self._clock.stamp())
        return {name: one.until for name, one in sorted((await self._book()).items()) if one.until > now}

    async def bring_to(self, queues: Iterable[str]) -> None:
        """Pause them in these queues, unless they were resumed there."""
        if self._backend.policies is None or not (book := await self._book()):
            return
        now = await self._backend.now(self._clock.stamp())
        for queue in queues:
            wanted = [name for name, one in book.items() if one.until > now and queue not in one.but]
            known = await self._policies().tenants(queue, wanted, None, MOST, self._clock.stamp()) if wanted else []
            done = {one.tenant for one in known if one.paused_until is not None}
            for name in wanted:
                if name not in done:
                    lasts = None if book[name].until >= FOREVER else book[name].until - now
                    await self._policies().pause(QueuePause(queue, name, None, True, lasts), self._clock.stamp())

    async def _book(self) -> _Book:
        if self._backend.documents is None:
            return {}
        return await _BOOK.read(self._backend.documents)

    async def _queues(self) -> list[str]:
        """Those that have jobs, or a worker."""
        stats = await self._backend.stats(self._clock.stamp())
        ruled = [one.policy.queue for one in await self._policies().find(None, self._clock.stamp())]
        served = (queue for worker in stats.workers for queue in worker.queues)
        return sorted({*(queue.queue for queue in stats.queues), *served, *ruled} - {""})

    def _policies(self) -> PolicyStore:
        if self._backend.policies is None:
            raise ConfigError("this store keeps no policies of queues, so it cannot pause a tenant")
        return self._backend.policies

    def _documents(self) -> DocumentStore:
        if self._backend.documents is None:
            raise ConfigError("this store keeps no documents, so it cannot pause a tenant in all queues")
        return self._backend.documents


async def _each(queues: Sequence[str], do: Callable[[str], Awaitable[None]]) -> None:
    """Several at a time: there may be thousands. If one fails, what is left is not begun."""
    left = iter(queues)

    async def some() -> None:
        for queue in left:
            await do(queue)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(some())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
