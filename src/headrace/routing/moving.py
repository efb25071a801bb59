"""A store that may move to another while it is used: what producers and workers hold during a transfer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from headrace.errors import Unavailable
from headrace.routing import passage
from headrace.routing.composite import Composite
from headrace.routing.known import is_closed, known_in
from headrace.routing.passage import Phase, Transfer
from headrace.routing.shadow import Shadow, sampled
from headrace.routing.transactions import RoutedTransactions
from headrace.routing.view import View
from headrace.seam import records as r
from headrace.seam.protocol import Backend, Transactions

FRESH = 1.0
"""Seconds for which a look at the transfer counts. What everybody must have seen is seen after ``SEEN``."""
SEEN = 3.0
TURN = 20.0
"""Seconds within which the home has changed once it is about to."""
_TRIES = 100


class Moving(Composite):
    """Two stores. As long as there is no transfer, the first one is all there is.

    Everybody looks at the transfer's document once a second. Nobody relies on having looked: new jobs are refused by
    the store that they must no longer go to, in the same step that would store them, and then the document is read
    again. A job is in one store at a time, or in a parcel between them, and whoever asks for one in a parcel takes it
    along.
    """

    def __init__(self, old: Backend, new: Backend) -> None:
        self.old, self.new = old, new
        super().__init__((old, new))
        self.transfer: Transfer | None = None
        self._looked_at = -FRESH
        self._new_is_open = False
        self._view = View((old,), old)
        self._looking = asyncio.Lock()
        self.shadow = Shadow(new, time.monotonic)
        self.shadows = {"second": self.shadow}

    @property
    def home(self) -> Backend:
        return self._view.home

    def sibling(self) -> Moving:
        return Moving(self.old.sibling(), self.new.sibling())._counting_with(self)

    async def open(self) -> None:
        await self.old.open()
        self._opened(self.old)
        await self.look()

    async def close(self) -> None:
        await self.shadow.close()
        self._new_is_open = False
        await super().close()

    async def view(self) -> View:
        if time.monotonic() - self._looked_at > FRESH:
            await self.look()
        return self._view

    async def look(self) -> View:
        """Read the transfer's document now."""
        async with self._looking:
            began = time.monotonic()
            self.transfer = await passage.read(self.old)
            self._view = self._view_of(self.transfer)
            if len(self._view.stores) > 1 or self._view.home is self.new:
                await self._open_new()
            self._looked_at = began
            return self._view

    async def still_home(self, store: Backend) -> bool:
        """If the home is about to change, nobody knows whether what was just written is taken along: wait and see."""
        began = time.monotonic()
        while True:
            view = await self.look()
            if self.transfer is None or not self.transfer.turning:
                return view.home is store
            if time.monotonic() - began > TURN:
                raise Unavailable(
                    "a transfer was stopped while rules and other documents were taken along; what was just written "
                    "may be left behind. Run: headrace transfer resume"
                )
            await asyncio.sleep(0.05)

    @property
    def tx(self) -> Transactions | None:
        return None if self.home.tx is None else RoutedTransactions(self.look, self.home.tx)

    async def _open_new(self) -> None:
        if not self._new_is_open:
            await self.new.open()
            self._new_is_open = True
            self._opened(self.new)

    def _view_of(self, transfer: Transfer | None) -> View:
        phase = None if transfer is None else transfer.phase
        match phase:
            case Phase.READY:
                return View((self.old, self.new), self.old)
            case Phase.FORWARD | Phase.MOVED:
                return View((self.old, self.new), self.new, transfer.leg() if transfer else "")
            case Phase.BACK:
                return View((self.new, self.old), self.old, transfer.leg() if transfer else "")
            case Phase.DONE:
                return View((self.new,), self.new)
            case _:
                return View((self.old,), self.old)

    async def place(self, view: View, rows: Sequence[r.Row], at: r.Stamp) -> list[r.Inserted]:
        answers: dict[int, r.Inserted] = {}
        left = list(range(len(rows)))
        for attempt in range(_TRIES):
            if view.leg:
                answers |= await known_in(view, {n: rows[n] for n in left}, at)
                left = [n for n in left if n not in answers]
            found = await view.home.insert([rows[n] for n in left], at) if left else []
            answers |= {n: answer for n, answer in zip(left, found, strict=True) if not is_closed(answer)}
            left = [n for n in left if n not in answers]
            if not left:
                break
            if attempt:
                await asyncio.sleep(min(0.02 * attempt, 0.5))
            view = await self.look()
        else:
            raise Unavailable(
                "no store takes new jobs: a transfer was stopped between two phases. Run: headrace transfer resume"
            )
        await self._copy([rows[n] for n, answer in answers.items() if answer.status is r.InsertStatus.NEW])
        return [answers[n] for n in range(len(rows))]

    async def _copy(self, rows: Sequence[r.Row]) -> None:
        transfer = self.transfer
        if transfer is None or transfer.phase not in passage.SHADOWED:
            return
        chosen = [row for row in rows if sampled(row.id, transfer.share)]
        if transfer.phase is Phase.SHADOW:
            self.shadow.offer(chosen)
        elif chosen:
            await self.shadow.write(chosen)

    async def sweep(self, clause: r.SweepClause, at: r.Stamp = None) -> r.Swept:
        """What has ended is swept where it goes to, so that no key outlives its job where it comes from."""
        view = await self.view()
        return await view.stores[-1].sweep(clause, at)
