"""The watch: looks at a store now and then, says which alerts are on, and tells hooks when that changes."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator, Sequence

from msgspec import Struct

from headrace.admin.firing import AlertChange, Firing, Level
from headrace.admin.hooks import Hook, Hooks
from headrace.admin.views import Overview, QueueView
from headrace.core.config import AlertSettings, RetentionSettings
from headrace.core.durations import micros, spell_roughly
from headrace.core.feed import Digest
from headrace.text import one_line

log = logging.getLogger("headrace.alerts")

_REPEATED = 300.0
"""Seconds after which an alert that a process raised, and did not repeat, is over, unless it repeats it less often."""
_SLACK = 2.5
"""Times as long as it said it would take to repeat it."""
_BOUND = 0.8
"""Of a budget: what takes up more is worth a look."""


class _Sample(Struct, frozen=True):
    at: float
    failed: dict[str, int]


class _Raised(Struct, frozen=True):
    firing: Firing
    until: float


class Watch:
    """Which alerts are on, by what was seen so far. Time is given as seconds of any clock that goes forward."""

    def __init__(self, settings: AlertSettings, retention: RetentionSettings, hooks: Sequence[Hook] = ()) -> None:
        self._settings = settings
        self._budget = retention.failed.bytes
        self.hooks = Hooks([log_change, *hooks])
        self._on: dict[tuple[str, str], Firing] = {}
        self._samples: deque[_Sample] = deque()
        self._ended: deque[tuple[float, Counter[tuple[str, str]]]] = deque()
        self._raised: dict[tuple[str, str], _Raised] = {}

    @property
    def every(self) -> float:
        """Seconds between two looks."""
        return micros(self._settings.every) / 1e6

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
                subject, until = one.subject or one.queue, now + max(_REPEATED, _SLACK * one.again_in)
                firing = Firing(name, Level.WARNING, subject, sentence, one.queue)
                self._raised[name, subject] = _Raised(firing, until)

    def look(self, overview: Overview | None, now: float) -> None:
        """See the store as it is now; None: it does not answer."""
        found = {(one.name, one.subject): one for one in self._found(overview, now)}
        changes = [AlertChange(one, on=False) for name, one in self._on.items() if name not in found]
        for name, one in found.items():
            before = self._on.get(name)
            if before is None or before.level is not one.level:
                changes.append(AlertChange(one, on=True))
        self._on = found
        for change in changes:
            self.hooks.tell(change)

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
        yield from (one.firing for one in self._raised.values())

    def _forget(self, now: float, window: float) -> None:
        while self._ended and now - self._ended[0][0] > window:
            self._ended.popleft()
        while len(self._samples) > 1 and now - self._samples[0].at > window:
            self._samples.popleft()
        self._raised = {name: told for name, told in self._raised.items() if now <= told.until}

    def _of_queue(self, queue: QueueView) -> Iterator[Firing]:
        if queue.running > self._settings.running:
            sentence = f"{queue.running:,} jobs run at once: taken, and not settled"
            yield _of(queue.name, "many_running", Level.WARNING, sentence)
        age = queue.oldest_due_seconds
        if age is None or queue.paused:
            return
        settings = self._settings
        waited = f"the oldest due job has waited {spell_roughly(round(age * 1e6))}"
        if age > micros(settings.unattended) / 1e6 and not queue.workers:
            yield _of(queue.name, "queue_unattended", Level.CRITICAL, f"no worker claims from it, and {waited}")
        elif age > micros(settings.unattended) / 1e6 and not queue.busy:
            yield _of(queue.name, "queue_stuck", Level.WARNING, f"no slot is busy, and {waited}")
        if age > micros(settings.oldest_critical) / 1e6:
            yield _of(queue.name, "queue_old", Level.CRITICAL, waited)
        elif age > micros(settings.oldest) / 1e6:
            yield _of(queue.name, "queue_old", Level.WARNING, waited)

    def _of_dead_letters(self, overview: Overview, now: float) -> Iterator[Firing]:
        failed = {queue.name: queue.failed for queue in overview.queues}
        for name, count in failed.items():
            least = min((one.failed.get(name, 0) for one in self._samples), default=count)
            if count - least >= self._settings.dead_letters:
                yield _of(name, "dead_letters_grow", Level.WARNING, f"{count - least:,} more dead letters lately")
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
                yield _of(queue, "failures", Level.WARNING, f"{bad / ended:.0%} of {ended:,} attempts failed lately")


def _of(queue: str, name: str, level: Level, sentence: str) -> Firing:
    """An alert about a queue."""
    return Firing(name, level, queue, sentence, queue)


def log_change(change: AlertChange) -> None:
    """A line for each change."""
    alert = change.alert
    subject = f" ({one_line(alert.subject)})" if alert.subject else ""
    words = f"{alert.name}{subject}: {one_line(alert.sentence)}" if change.on else f"{alert.name}{subject}: over"
    level = logging.ERROR if alert.level is Level.CRITICAL else logging.WARNING
    fields = {"alert": alert.name, "alert_level": alert.level.value, "alert_on": change.on}
    log.log(level if change.on else logging.INFO, "%s", words, extra=fields)
