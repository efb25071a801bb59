"""Run a worker in this process, and stop it on a signal or when its parent dies."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headrace import Queue
from headrace.api.signals import Stopper, end_now
from headrace.cli.doctor_checks import server
from headrace.cli.helper_process import HelpedProcess, HelperProcess, helper_name
from headrace.cli.output import discard
from headrace.cli.problems import USAGE, Problem
from headrace.cli.worker_introduction import introduce, settings
from headrace.cli.worker_summary import Summary
from headrace.core.durations import micros, spell
from headrace.core.names import worker_name
from headrace.errors import Unavailable
from headrace.worker.child import pidfd

if TYPE_CHECKING:
    from headrace.cli.loading import Target

T = TypeVar("T")

log = logging.getLogger("headrace.worker")


def run_fast(work: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop if it is installed, else on asyncio's own loop."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        import uvloop  # type: ignore[import-not-found,unused-ignore]

        factory = uvloop.new_event_loop
    except ImportError:
        pass
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


class WorkerStopper(Stopper):
    """Stops the worker of an app or queue, and says so."""

    def __init__(self, target: Target, helper: HelperProcess | None = None) -> None:
        super().__init__(self._stop_queue if isinstance(target, Queue) else target.stop)
        self._target = target
        self._helper = helper
        self._stopping: asyncio.Future[None] | None = None

    def tether(self) -> None:
        """Also stop when stdin ends or the parent dies; a process that the parent forked may keep stdin open."""
        self._loop.add_reader(0, self._hear_stdin)
        if (parent := pidfd(os.getppid())) is not None:
            self._loop.add_reader(parent, self._gone, parent)

    def ask(self, why: str) -> None:
        if not self.asked:
            grace = spell(micros(settings(self._target).worker.grace))
            log.info("%s: running jobs may finish within %s; a second signal stops the worker at once", why, grace)
        if self._helper is not None:
            self._helper.stop()
        super().ask(why)

    def _stop_queue(self) -> None:
        assert isinstance(self._target, Queue)
        self._stopping = asyncio.ensure_future(self._target.stop())

    async def stopped(self) -> None:
        """Return when the stop is complete."""
        if self._stopping is not None:
            await self._stopping

    def _hear_stdin(self) -> None:
        if not os.read(0, 4_096):
            self._gone(0)

    def _gone(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        self.ask("stopping: the process that started this one is gone")


class HelperStopper(WorkerStopper):
    """Stops a helper when its worker asks for it or is gone. A worker that stops waits for its helper; if it is gone
    before that, it was killed, and the helper ends at once."""

    def _hear_stdin(self) -> None:
        if os.read(0, 4_096):
            self.ask("stopping with the worker")
        else:
            self._gone(0)

    def _gone(self, fd: int) -> None:
        if self.asked:
            end_now(signal.SIGTERM)
        super()._gone(fd)


def adjust(target: Target, *, concurrency: int | None, name: str | None) -> None:
    """Apply options of the command line over the settings in the code."""
    changes = {key: value for key, value in (("concurrency", concurrency), ("name", name)) if value is not None}
    before = settings(target)
    after = msgspec.structs.replace(before, worker=msgspec.structs.replace(before.worker, **changes))
    if isinstance(target, Queue):
        target.settings = after
    else:
        target.client.settings = after


async def work(
    target: Target, queues: Sequence[str], *, burst: bool, tethered: bool, again: Sequence[str], http: str | None = None
) -> None:
    """Run a worker until it is stopped; with ``burst``, until nothing is due any more. A helper gets the arguments
    ``again``. ``http`` is the address of the HTTP server, instead of that of the settings."""
    if isinstance(target, Queue) and (others := set(queues) - {target.name}):
        raise Problem(USAGE, f"the worker of queue {target.name!r} cannot claim from queue {min(others)!r}")
    helper = target.client.helper = None if burst else _helper(target, again)
    with WorkerStopper(target, helper) as stopper:
        async with target.client:
            if tethered:
                stopper.tether()
            await _introduce(target, queues)
            if not stopper.asked:
                summary = Summary(target.client.observers.measure(target.client.clock), lambda: _busy(target))
                # What is routine is told only if somebody hears it, and then it is logged too.
                target.client.observers.add(summary.observe, routine=log.isEnabledFor(logging.DEBUG))
                async with summary.logged(), _http(target, http):
                    try:
                        await _work(target, queues, burst=burst)
                    finally:
                        if helper is not None:
                            await helper.close()
            await stopper.stopped()


def _busy(target: Target) -> int:
    """How many jobs its worker runs now."""
    return 0 if target.worker is None else target.worker.busy


@asynccontextmanager
async def _http(target: Target, address: str | None) -> AsyncIterator[None]:
    """HTTP beside the worker, if it is wanted."""
    http = target.client.settings.http
    if address is not None:
        http = msgspec.structs.replace(http, address=address)
    if http.address is None:
        yield
        return
    need_web()
    from headrace.web.server import serve_http

    async with serve_http(target, http):
        yield


def has_web() -> bool:
    """Whether the packages for HTTP are installed."""
    return all(find_spec(name) is not None for name in ("jinja2", "prometheus_client", "starlette", "uvicorn"))


def need_web() -> None:
    """Refuse to serve HTTP without its packages."""
    if not has_web():
        raise Problem(
            USAGE, "HTTP needs packages that are not installed", run="pip install 'headrace[web]', or leave out --http"
        )


def _helper(target: Target, arguments: Sequence[str]) -> HelperProcess | None:
    """None for a worker with one slot, and for a store that other processes do not see."""
    worker = settings(target).worker
    if worker.concurrency == 1 or target.client.settings.url.startswith("memory:"):
        return None
    name = helper_name(worker_name(worker.name, Random()))
    arguments = [*arguments, "--concurrency", "1", "--name", name]
    return HelperProcess(arguments, lease=micros(worker.lease) / 1e6, grace=micros(worker.grace) / 1e6)


async def help_out(target: Target, queues: Sequence[str]) -> None:
    """Run jobs on their last chance until none is left, or until the worker is gone."""
    target.client.guest = True
    target.client.helped = HelpedProcess()
    with HelperStopper(target) as stopper:
        async with target.client:
            stopper.tether()
            if not stopper.asked:
                await _work(target, queues, burst=True)
            await stopper.stopped()


async def _work(target: Target, queues: Sequence[str], *, burst: bool) -> None:
    if isinstance(target, Queue):
        await target.work(burst=burst)
    else:
        await target.work(list(queues) or None, burst=burst)


async def _introduce(target: Target, queues: Sequence[str]) -> None:
    introduction = introduce(target, queues)
    log.info("%s", introduction.sentence, extra=introduction.fields)
    if introduction.tasks:
        log.info("tasks: %s", ", ".join(introduction.tasks))
    for level, text in await _kept(target):
        log.log(level, "store %s: %s", introduction.store, text, extra={"store": introduction.store, "durable": text})
    for queue in introduction.unknown_queues:
        log.warning("no task of this app belongs to queue %s; is that the right name?", queue)


async def _kept(target: Target) -> list[tuple[int, str]]:
    """What a server is set up to keep, with the level to log it at: it may be nothing."""
    try:
        found = await server(await target.client.backend(), settings(target))
    except Unavailable:
        return []
    told = [one for one in found if one.check == "persistence"]
    return [
        (
            logging.INFO if one.level == "ok" else logging.WARNING,
            f"{one.what} -> {one.advice}" if one.advice and one.level != "ok" else one.what,
        )
        for one in told
    ]


def flush() -> None:
    """Flush the log and stdout."""
    logging.shutdown()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
