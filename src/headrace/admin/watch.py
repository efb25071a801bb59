"""The watch: looks at a store now and then, says which alerts are on, and tells hooks when that changes."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from headrace.admin.views import Overview, QueueView
from headrace.core.config import AlertSettings, RetentionSettings
from headrace.core.durations import micros, spell_roughly
from headrace.core.feed import Digest
from headrace.core.view import View
from headrace.text import one_line

log = logging.getLogger("headrace.alerts")

_REPEATED = 300.0
"""Seconds after which an alert that a process raised, and did not repeat, is over."""
_BOUND = 0.8
"""Of a budget: what takes up more is worth a look."""


class Level(StrEnum):
    """How bad it is.

    >>> Level("critical") is Level.CRITICAL
    True
    """

    WARNING = "warning"
    CRITICAL = "critical"


class Firing(View, frozen=True):
    """An alert that is on.

    >>> Firing("queue_old", Level.WARNING, "mail", "the oldest due job has waited 11m").subject
    'mail'
    """

    name: str
    level: Level
    subject: str
    """What it is about: a queue, or empty for the store."""
    sentence: str


class AlertChange(View, frozen=True):
    """An alert came on, changed its level, or is over.

    >>> AlertChange(Firing("queue_old", Level.WARNING, "mail", "…"), on=True).on
    True
    """

    alert: Firing
    on: bool


Hook = Callable[[AlertChange], Awaitable[None] | None]
"""Told of every change. One that raises is logged, and told of the next change all the same."""


class _Sample(Struct, frozen=True):
    at: float
    failed: dict[str, int]


class Watch:
    """Which alerts are on, by what was seen so far. Time is given as seconds of any clock that goes forward."""

    def __init__(self, settings: AlertSettings, retention: RetentionSettings, hooks: Sequence[Hook] = ()) -> None:
        self._settings = settings
        self._budget = retention.failed.bytes
        self._hooks = [log_change, *hooks]
        self._on: dict[tuple[str, str], Firing] = {}
        self._samples: deque[_Sample] = deque()
        self._ended: deque[tuple[float, Counter[tuple[str, str]]]] = deque()
        self._raised: dict[tuple[str, str], tuple[float, str]] = {}

    @property
    def firing(self) -> list[Firing]:
        """The alerts that are on, worst first."""
        return sorted(self._on.values(), key=lambda one: (one.level is not Level.CRITICAL, one.name, one.subject))

    def hear(self, digest: Digest, now: float) -> None:
        """What another process told."""
        counts = Counter({(one.queue, one.what): one.count for one in digest.tallies})
        if counts:
            self._ended.append((now, counts))
        for one in digest.happenings:
            if one.kind == "alert" and one.detail:
                name, _, sentence = one.detail.partition(": ")
                self._raised[name, one.queue] = now, sentence

    async def look(self, overview: Overview | None, now: float) -> None:
        """See the store as it is now; None: it does not answer."""
        found = {(one.name, one.subject): one for one in self._found(overview, now)}
        changes = [AlertChange(one, on=False) for name, one in self._on.items() if name not in found]
        for name, one in found.items():
            before = self._on.get(name)
            if before is None or before.level is not one.level:
                changes.append(AlertChange(one, on=True))
        self._on = found
        for change in changes:
            await self._tell(change)

    async def _tell(self, change: AlertChange) -> None:
        for hook in self._hooks:
            try:
                told = hook(change)
                if inspect.isawaitable(told):
                    await told
            except Exception:
                log.exception("a hook for alerts raised")

    def _found(self, overview: Overview | None, now: float) -> Iterator[Firing]:
        if overview is None:
            yield Firing("store_away", Level.CRITICAL, "", "the store does not answer")
            yield from (one for one in self._on.values() if one.name != "store_away")
            return
        window = micros(self._settings.window) / 1e6
        self._forget(now, window)
        for queue in overview.queues:
            yield from self._of_queue(queue)
        yield from self._of_dead_letters(overview, now)
        yield from self._of_attempts()
        if self._settings.store_bytes is not None and overview.store_bytes > _BOUND * self._settings.store_bytes:
            share = overview.store_bytes / self._settings.store_bytes
            yield Firing("store_large", Level.WARNING, "", f"the store takes up {share:.0%} of its budget")
        lag = overview.vault_lag_seconds
        if lag is not None and lag > micros(self._settings.vault_lag) / 1e6:
            waited = spell_roughly(round(lag * 1e6))
            yield Firing("vault_behind", Level.WARNING, "", f"a job that ended {waited} ago is not in the vault yet")
        for (name, subject), (_, sentence) in self._raised.items():
            yield Firing(name, Level.WARNING, subject, sentence)

    def _forget(self, now: float, window: float) -> None:
        while self._ended and now - self._ended[0][0] > window:
            self._ended.popleft()
        while len(self._samples) > 1 and now - self._samples[0].at > window:
            self._samples.popleft()
        self._raised = {name: told for name, told in self._raised.items() if now - told[0] <= _REPEATED}

    def _of_queue(self, queue: QueueView) -> Iterator[Firing]:
        if queue.running > self._settings.running:
            sentence = f"{queue.running:,} jobs run at once: taken, and not settled"
            yield Firing("many_running", Level.WARNING, queue.name, sentence)
        age = queue.oldest_due_seconds
        if age is None or queue.paused:
            return
        settings = self._settings
        waited = f"the oldest due job has waited {spell_roughly(round(age * 1e6))}"
        if age > micros(settings.unattended) / 1e6 and not queue.workers:
            yield Firing("queue_unattended", Level.CRITICAL, queue.name, f"no worker claims from it, and {waited}")
        elif age > micros(settings.unattended) / 1e6 and not queue.busy:
            yield Firing("queue_stuck", Level.WARNING, queue.name, f"no slot is busy, and {waited}")
        if age > micros(settings.oldest_critical) / 1e6:
            yield Firing("queue_old", Level.CRITICAL, queue.name, waited)
        elif age > micros(settings.oldest) / 1e6:
            yield Firing("queue_old", Level.WARNING, queue.name, waited)

    def _of_dead_letters(self, overview: Overview, now: float) -> Iterator[Firing]:
        failed = {queue.name: queue.failed for queue in overview.queues}
        for name, count in failed.items():
            least = min((one.failed.get(name, 0) for one in self._samples), default=count)
            if count - least >= self._settings.dead_letters:
                yield Firing("dead_letters_grow", Level.WARNING, name, f"{count - least:,} more dead letters lately")
        self._samples.append(_Sample(now, failed))
        size = next((one.bytes for one in overview.kept if one.target == "failed"), 0)
        if self._budget is not None and size > _BOUND * self._budget:
            sentence = f"dead letters take up {size / self._budget:.0%} of retention.failed.bytes; the oldest go soon"
            yield Firing("dead_letters_large", Level.WARNING, "", sentence)

    def _of_attempts(self) -> Iterator[Firing]:
        total: Counter[tuple[str, str]] = Counter()
        for _, counts in self._ended:
            total.update(counts)
        for queue in {name for name, _ in total}:
            bad = total[queue, "dead"] + total[queue, "retried"]
            ended = bad + total[queue, "completed"]
            if ended >= self._settings.attempts and bad / ended > self._settings.failure_ratio:
                yield Firing("failures", Level.WARNING, queue, f"{bad / ended:.0%} of {ended:,} attempts failed lately")


def log_change(change: AlertChange) -> None:
    """A line for each change."""
    alert = change.alert
    subject = f" ({one_line(alert.subject)})" if alert.subject else ""
    words = f"{alert.name}{subject}: {one_line(alert.sentence)}" if change.on else f"{alert.name}{subject}: over"
    level = logging.ERROR if alert.level is Level.CRITICAL else logging.WARNING
    fields = {"alert": alert.name, "alert_level": alert.level.value, "alert_on": change.on}
    log.log(level if change.on else logging.INFO, "%s", words, extra=fields)


async def looking(watch: Watch, overview: Callable[[], Awaitable[Overview | None]], every: float) -> None:
    """Look every so many seconds, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await watch.look(await overview(), loop.time())
        await asyncio.sleep(every)
