"""Takes a transfer from phase to phase, and moves what there is to move. Any process can do it, and go on where another
one stopped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from secrets import token_hex
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from headrace.core.walks import walk
from headrace.errors import ConfigError, HeadraceError, Unavailable
from headrace.routing import passage
from headrace.routing.belongings import (
    copy_documents,
    copy_held_keys,
    copy_journal,
    copy_positions,
    copy_rules,
    move_schedules,
)
from headrace.routing.gates import close_to_new_jobs, depth_of, open_to_new_jobs
from headrace.routing.moving import SEEN, Moving
from headrace.routing.parity import verify
from headrace.routing.passage import Phase, Transfer, Verdict
from headrace.routing.shadow import QUEUE
from headrace.routing.transit import deliver
from headrace.routing.view import View, present
from headrace.seam.policy import QueuePause
from headrace.seam.protocol import Backend
from headrace.seam.records import Delete, Selector
from headrace.seam.ticks import ScheduleSelector
from headrace.types import JobState

log = logging.getLogger("headrace")

T = TypeVar("T")
_PAGE = 250
_WAITING = frozenset((JobState.AVAILABLE, JobState.PAUSED))
_LIVE = _WAITING | {JobState.RUNNING}
_PATIENCE = 300.0
"""Seconds for which a store may be away."""
_AGAIN = 0.2
"""Seconds until those that still run are looked at again."""


class Progress(Struct):
    """What a mover has done so far."""

    moved: int = 0
    running: int = 0
    """Jobs that still run in the store that is left. They move when they have ended or wait again."""


Tell = Callable[[Progress], None]


class Stopped(HeadraceError):
    """The transfer is paused, or somebody has turned it around."""


class Mover:
    """Moves one store to another."""

    def __init__(
        self,
        store: Moving,
        *,
        tell: Tell = lambda _: None,
        seen: float | None = None,
        patience: float = _PATIENCE,
        insist: bool = False,
    ) -> None:
        self.store = store
        self.progress = Progress()
        self.verdict: Verdict | None = None
        """What the ledgers said at the end."""
        self._insist = insist
        self._tell = tell
        self._seen = SEEN if seen is None else seen
        self._patience = patience
        self._next_at = 0.0
        """When the next jobs may move."""
        self._rolled_back = False
        """Whether all is back, and only the note of it is left to be removed."""

    # -- from phase to phase

    async def start(self, *, dual: bool = False, share: float = 1.0, rate: int | None = None) -> Transfer:
        """Begin a transfer: copies of new jobs go to the second store."""
        await self.check()
        now = await self.store.old.now()
        phase = Phase.DUAL if dual else Phase.SHADOW

        def begin(known: Transfer | None) -> Transfer:
            if known is not None and known.phase not in passage.SHADOWED:
                raise ConfigError(f"expected no transfer that has begun to move, got one in the phase {known.phase}")
            name, began = (token_hex(4), now) if known is None else (known.name, known.began_at)
            return Transfer(name=name, phase=phase, share=share, rate=rate, began_at=began, phase_at=now)

        transfer = await passage.write(self.store.old, begin)
        assert transfer is not None
        return transfer

    async def check(self) -> None:
        """Refuse stores that cannot be moved, or hold what cannot move."""
        old, new = self.store.old, self.store.new
        await new.open()
        for store in (old, new):
            if store.transfers is None or store.documents is None or store.policies is None:
                raise ConfigError("expected stores that can be moved to and from (the capability transfers)")
        if old.tracks is not None and await old.tracks.tally():
            raise ConfigError("expected a store without trackers, which cannot move yet; remove them first")
        if await passage.read(old) is None and (await _has_jobs(new) or await _has_schedules(new)):
            raise ConfigError(
                "expected a second store without jobs and schedules, got one in use: what is there could not be "
                "told from what moves. Give Headrace a schema, a prefix or a file of its own"
            )

    async def cutover(self) -> Transfer:
        """Let new jobs go to the second store, and move all there is. Returns when nothing is left to move. A store
        that is away for a while is waited for."""
        return await self._outlast(self._cutover)

    async def rollback(self) -> None:
        """Take everything back to the first store. Returns when nothing is left in the second; then there is no
        transfer any more. Refused while a job is lost or doubled, like ``finish``."""
        await self._outlast(self._rollback)

    async def _outlast(self, journey: Callable[[], Awaitable[T]]) -> T:
        """Go on, from where it stopped, as long as a store that was away comes back within patience."""
        began, moved = time.monotonic(), self.progress.moved
        while True:
            try:
                return await journey()
            except Unavailable as error:
                if self.progress.moved > moved:
                    began, moved = time.monotonic(), self.progress.moved
                if time.monotonic() - began > self._patience:
                    raise
                log.warning("moving waits for a store that is away: %s", error)
                await asyncio.sleep(_AGAIN)

    async def _cutover(self) -> Transfer:
        transfer = await self._phase((*passage.SHADOWED, Phase.READY, Phase.FORWARD, Phase.MOVED), None)
        if transfer.phase in passage.SHADOWED:
            await self._phase(passage.SHADOWED, Phase.READY)
        if transfer.phase in (*passage.SHADOWED, Phase.READY):
            await asyncio.sleep(self._seen)
            await self._remove_copies()
            await self._turn_round(Phase.READY, Phase.FORWARD)
        await self.drain()
        return await self._phase((Phase.FORWARD, Phase.MOVED), Phase.MOVED)

    async def _rollback(self) -> None:
        if await passage.read(self.store.old) is None and self._rolled_back:
            return
        transfer = await self._phase(tuple(phase for phase in Phase if phase is not Phase.DONE), None)
        if transfer.phase in (Phase.FORWARD, Phase.MOVED):
            await self._turn_round(transfer.phase, Phase.BACK)
        if transfer.phase in passage.MOVING:
            await self.drain()
            await asyncio.sleep(self._seen)
            verdict = await self._judge(Phase.BACK)
            await passage.write(self.store.old, lambda known: known and replace(known, verdict=verdict))
            await self._close_legs(transfer)
        else:
            await open_to_new_jobs(self.store.old, transfer.depths[0])
        self._rolled_back = True
        await passage.write(self.store.old, lambda _: None)
        await self.store.look()
        if transfer.phase in passage.SHADOWED:
            await asyncio.sleep(self._seen)
        await self._remove_copies()

    async def finish(self) -> None:
        """End a transfer for good: from now on the second store is all there is. Refused if a job is lost or doubled,
        unless somebody insists: the ledgers, which tell which one it is, go."""
        transfer = await self._phase((Phase.MOVED, Phase.DONE), None)
        if transfer.phase is Phase.MOVED and not await self._drained(await self.store.look()):
            raise ConfigError("expected that nothing is left in the first store. Run: headrace transfer resume")
        verdict = await self._judge(transfer.phase)
        await self._phase((Phase.MOVED, Phase.DONE), Phase.DONE, verdict=verdict)
        await passage.mark_whole(self.store.new)
        await self._close_legs(transfer)
        await self._remove_copies()

    async def _judge(self, phase: Phase) -> Verdict:
        """What the ledgers say."""
        verdict = self.verdict = await verify(self.store, await self._phase((phase,), None))
        if not self._insist and (verdict.lost or verdict.doubled):
            raise ConfigError(
                f"expected that no job is lost or doubled, got {verdict.lost:,} lost, {verdict.doubled:,} doubled. "
                "headrace transfer verify names some. To end it all the same: the command with --insist"
            )
        return verdict

    async def _close_legs(self, transfer: Transfer) -> None:
        found = await passage.read(self.store.old) or transfer
        for number in range(1, found.legs + 2):
            for store in (self.store.old, self.store.new):
                await present(store.transfers).close_leg(found.leg(number))

    async def _phase(self, expected: tuple[Phase, ...], wanted: Phase | None, **changes: object) -> Transfer:
        """Check the phase, and go on to another one."""
        now = await self.store.old.now()

        def change(known: Transfer | None) -> Transfer:
            if known is None or known.phase not in expected:
                there = "there is none" if known is None else f"it is in the phase {known.phase}"
                raise ConfigError(f"expected a transfer in the phase {', '.join(expected)}; {there}")
            if wanted is None or wanted is known.phase:
                return known
            return replace(known, phase=wanted, phase_at=now, **changes)

        transfer = await passage.write(self.store.old, change)
        assert transfer is not None
        await self.store.look()
        return transfer

    async def _turn_round(self, phase: Phase, wanted: Phase) -> None:
        """Change the direction in which jobs move. New jobs are refused by the store that is left before they are taken
        by the other, so that no key is taken in both."""
        transfer = await self._phase((phase, wanted), None)
        if transfer.phase is wanted:
            return
        forward = wanted is Phase.FORWARD
        left, goal = (self.store.old, self.store.new) if forward else (self.store.new, self.store.old)
        await passage.mark_part(self.store.new)
        await copy_rules(left, goal)
        await copy_journal(left, goal)
        held = await queues_with_groups(left)
        for store in (left, goal):
            await present(store.transfers).open_leg(transfer.leg(transfer.legs + 1))
        transfer = await self._note_depth(transfer, left)
        await close_to_new_jobs(left)
        held |= await queues_with_groups(left)
        await copy_held_keys(left, goal)
        for queue in sorted(held):
            await present(goal.policies).pause(QueuePause(queue))
        await passage.write(self.store.old, lambda known: known and replace(known, turning=True))
        await copy_documents(left, goal)
        await copy_journal(left, goal)
        await copy_positions(left, goal)
        await open_to_new_jobs(goal, transfer.depths[1 if forward else 0])
        await self._phase((phase,), wanted, legs=transfer.legs + 1, held=tuple(sorted(held)), turning=False)

    async def _note_depth(self, transfer: Transfer, left: Backend) -> Transfer:
        """Write down how many jobs may wait in a store before it is closed, for the day on which it opens again."""
        depth = await depth_of(left)
        if depth == 0:
            return transfer
        depths = (depth, transfer.depths[1]) if left is self.store.old else (transfer.depths[0], depth)
        noted = await passage.write(self.store.old, lambda known: known and replace(known, depths=depths))
        return noted or transfer

    # -- moving

    async def drain(self) -> None:
        """Move everything from the store that is left to the other. Raises ``Stopped`` if somebody says so."""
        view = await self._go_on()
        leg = view.leg
        while True:
            # of movers that died; the last call of one that was given up may still come
            while parcels := await present(view.stores[0].transfers).parcels(leg, limit=_PAGE):
                await deliver(view, parcels)
            await move_schedules(*view.stores)
            for states in (_WAITING, frozenset(JobState) - _LIVE):
                await self._move(view, states)
            if await self._drained(await self._go_on(leg)):
                return
            await asyncio.sleep(_AGAIN)

    async def _go_on(self, leg: str = "") -> View:
        """The stores, unless the transfer is paused or has turned around."""
        view = await self.store.look()
        transfer = self.store.transfer
        if transfer is None or not view.leg or (leg and view.leg != leg):
            raise Stopped("the transfer has ended or turned around meanwhile")
        if transfer.paused:
            raise Stopped("the transfer is paused. To go on: headrace transfer resume")
        return view

    async def _move(self, view: View, states: frozenset[JobState]) -> None:
        """One pass over the jobs of these states."""
        old = view.stores[0]
        async for records in walk(old, Selector(states=states), page=_PAGE):
            if records:
                ids = [record.id for record in records if record.queue != QUEUE]
                parcels = await present(old.transfers).depart(view.leg, ids)
                await deliver(view, parcels)
                self.progress.moved += len(parcels)
                self._tell(self.progress)
                await self._keep_pace(len(parcels))
                view = await self._go_on(view.leg)

    async def _keep_pace(self, moved: int) -> None:
        """So many jobs have moved: wait until the next may, at the rate that holds now."""
        rate = self.store.transfer.rate if self.store.transfer is not None else None
        if rate is not None:
            now = time.monotonic()
            self._next_at = max(self._next_at, now) + moved / rate
            await asyncio.sleep(self._next_at - now)

    async def _drained(self, view: View) -> bool:
        """Whether the store that is left has no job any more. Queues whose jobs all have moved go on."""
        old, new = view.stores
        left = {queue.queue: queue for queue in (await old.stats()).queues if queue.queue != QUEUE}
        live = {name for name, one in left.items() if one.available or one.running or one.jobs_paused}
        self.progress.running = sum(one.running for one in left.values())
        self._tell(self.progress)
        if await present(old.transfers).parcels(view.leg, limit=1):
            return False
        transfer = self.store.transfer
        for queue in transfer.held if transfer is not None else ():
            if queue not in live and not (queue in left and left[queue].paused):
                await present(new.policies).pause(QueuePause(queue, paused=False))
        if live or await _has_schedules(old) or await _has_jobs(old):
            return False
        await copy_held_keys(old, new)
        return True

    async def _remove_copies(self) -> None:
        await self.store.new.open()
        while await self.store.new.alter(Selector(queue=QUEUE, limit=1_000), Delete()):
            pass


async def queues_with_groups(store: Backend) -> set[str]:
    """The queues that have live jobs in groups."""
    pages = walk(store, Selector(states=_LIVE), page=1_000)
    return {record.queue async for records in pages for record in records if record.group is not None}


async def _has_jobs(store: Backend) -> bool:
    """Whether there is any job but copies."""
    async for records in walk(store, Selector(), page=_PAGE):
        if any(record.queue != QUEUE for record in records):
            return True
    return False


async def _has_schedules(store: Backend) -> bool:
    return store.ticks is not None and bool(await store.ticks.find(ScheduleSelector(), limit=1))
