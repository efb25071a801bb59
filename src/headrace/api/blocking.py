"""Calls for code that blocks: straight to the store, if it has doors for that. Others run on the loop that has the
client open, or else on one in the background."""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, _get_running_loop
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from headrace.api.background import run_behind, runs_here, wait_on
from headrace.api.client import Client
from headrace.api.direct import Door, NeedsLoop, doors_of
from headrace.core.store_access import Owner
from headrace.errors import ConfigError
from headrace.seam.records import Inserted
from headrace.types import NewJob

R = TypeVar("R")

log = logging.getLogger("headrace")
_told: set[str] = set()


class Blocking:
    """Has coroutines of a client run where they belong, and waits for them. Callable from any thread."""

    def _do(
        self,
        client: Client,
        call: Callable[[], Coroutine[Any, Any, R]],
        instead: str,
        *,
        brief: bool = False,
    ) -> R:
        """Run the coroutine of ``call``, and wait for it. ``instead`` says what to await on an event loop. Only what is
        ``brief`` may block one."""
        while (loop := self._loop_of(client, instead, brief)) is not None and client.runner is None:
            try:
                return wait_on(loop, call)
            except RuntimeError:
                if not loop.is_closed():
                    raise
        if client.runner is not None and _get_running_loop() is None:
            return client.runner(call)  # type: ignore[no-any-return]
        return run_behind(client.behind, self, call, brief=brief)

    def _try(
        self,
        client: Client,
        work: Callable[[Door], Coroutine[Any, Any, R]],
        call: Callable[[], Coroutine[Any, Any, R]],
        instead: str,
        *,
        brief: bool = False,
    ) -> R:
        """The same straight in the store: ``work`` on a door, if there is one, or else ``call`` on a loop."""
        doors = doors_of(client)
        if doors is not None:
            self._loop_of(client, instead, brief)
            with suppress(NeedsLoop):
                return doors.call(work)
        return self._do(client, call, instead, brief=brief)

    def _on(
        self,
        client: Client,
        work: Callable[[Client], Coroutine[Any, Any, R]],
        instead: str,
        *,
        brief: bool = False,
    ) -> R:
        """The same for ``work`` that a door and the client on its loop do alike."""
        return self._try(client, work, lambda: work(client.here), instead, brief=brief)

    def _insert(self, owner: Owner[Client], job: NewJob, instead: str) -> Inserted:
        """Store a job."""
        return self._on(owner.client, lambda client: client.enqueue(job), instead, brief=True)

    def _loop_of(self, client: Client, instead: str, brief: bool) -> AbstractEventLoop | None:
        """The loop that has the client open; None: the one in the background is to be used."""
        if _get_running_loop() is not None:
            if runs_here() or not brief:
                raise ConfigError(f"this call would block the event loop that runs here; await {instead} here")
            _tell(instead)
            return None
        return client.host


BLOCKING = Blocking()
"""For calls that belong to no ``SyncApp``. What they open in the background stays open until the process ends."""


def _tell(instead: str) -> None:
    """Warn once about a call that blocks an event loop."""
    if instead not in _told:
        _told.add(instead)
        log.warning(
            "a blocking call on an event loop holds up everything else there, for a millisecond or so, and for as long "
            "as `patience` while the store is away; in async code, await %s",
            instead,
        )
