"""A duty of every worker: while there are several keys, what was sealed with an old one is sealed again."""

from __future__ import annotations

import asyncio
import logging

from headrace.errors import Unavailable
from headrace.keeping.resealer import Resealed, Resealer
from headrace.keeping.share import Share
from headrace.payloads.keyring import Keyring
from headrace.schedules.template_seals import TemplateSeals
from headrace.worker.kit import Kit

log = logging.getLogger("headrace")

_PAUSE = 0.1
"""Seconds after each page, so that a walk over a large store takes little of it."""
_CLEAN = 86_400.0
"""Seconds until the next walk, after one that found nothing: others may still seal with the old key."""


class ResealDuty:
    """Walks over all jobs and schedules now and then. The workers that are listed share the jobs out among them."""

    def __init__(self, kit: Kit, keyring: Keyring, *, every: float, unsealed: bool) -> None:
        self._kit = kit
        self._every = every
        backend, clock = kit.backend, kit.clock
        self._resealer = Resealer(backend, keyring, kit.stowage, clock, unsealed=unsealed)
        self._templates = (
            None if backend.ticks is None else TemplateSeals(backend.ticks, keyring, clock, unsealed=unsealed)
        )

    async def run(self) -> None:
        """Walk until cancelled. What fails is tried again."""
        rest = self._every
        while True:
            await asyncio.sleep(rest * (0.75 + self._kit.rng.random() / 2))
            rest = self._every
            try:
                done = await self.walk()
            except Unavailable as error:
                log.warning("what old keys have sealed could not be sealed again; that is tried again: %s", error)
            except Exception:
                log.exception("what old keys have sealed could not be sealed again; that is tried again")
            else:
                rest = self._every if done.resealed else max(self._every, _CLEAN)

    async def walk(self) -> Resealed:
        """One walk over this worker's share."""
        done = await self._resealer.reseal(await self._share(), _PAUSE)
        if self._templates is not None:
            done = done.plus(Resealed(*await self._templates.reseal()))
        if done.resealed:
            log.info("%d of %d sections and results were sealed again with the new key", done.resealed, done.looked)
        if done.refused:
            log.warning("%d sections or results cannot be opened with any key; see headrace seal status", done.refused)
        return done

    async def _share(self) -> Share:
        stats = await self._kit.backend.stats(self._kit.clock.stamp(), queues=())
        listed = sorted({one.worker for one in stats.workers})
        return Share(listed.index(self._kit.name), len(listed)) if self._kit.name in listed else Share()
