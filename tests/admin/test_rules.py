"""The rules for Prometheus, on metrics as we expose them: each comes on when it should, and is over afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from headrace.core.alerts import Alert
from headrace.core.clock import ManualClock
from headrace.core.durations import micros
from headrace.core.events import Event, EventKind
from headrace.core.meter import Meter
from headrace.keeping.budget import Budget, Measured
from headrace.keeping.waiting_ends import WaitingEnds
from headrace.seam.records import KeptStats, Leased, QueueStats, Stats, WorkerStats
from headrace.seam.usage import Usage
from headrace.web.metrics import EventCounts, Metrics
from headrace.web.pulse import Pulse
from headrace.web.store_metrics import Beside, of_store
from tests.admin.promql import Samples, Scrape

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "headrace-rules.yml"
EVERY = 60.0
CALM, TROUBLE, AFTER = 15, 25, 45
"""Minutes."""
JOB = Leased(b"x" * 16, "mail", "send", {}, 1)


class World:
    """A store and a process that works on it, minute by minute. All is well, unless there is trouble."""

    def __init__(self) -> None:
        self.meter, self.counts, self.pulse = Meter(ManualClock()), EventCounts(), Pulse()
        self.now, self.failed = 1_000_000.0, 0
        self.queue: dict[str, Any] = {}
        self.used = 500
        self.up, self.slots, self.seen, self.dead_bytes, self.swept, self.vault = True, 10, 0.0, 0, True, 0.0
        self.archive_failures, self.save_failed = 0, 0

    def scrape(self, trouble: Callable[[World], None] | None) -> Scrape:
        """A minute goes by."""
        self.now += EVERY
        self.up, self.slots, self.seen, self.dead_bytes, self.swept, self.vault = True, 10, self.now, 0, True, 0.0
        self.queue, self.used, self.save_failed = {"running": 1}, 500, 0
        for _ in range(20):
            self.meter.completed(JOB, 0.0)
            self.meter.upkeep.used("mail", 0.3)
        for _ in range(240):
            self.pulse.lag.add(0.001)
        if trouble is not None:
            trouble(self)
        if self.swept:
            self.meter.upkeep.swept("completed", 0.1, self.now)
        return self._samples()

    def _samples(self) -> Scrape:
        queue = QueueStats("mail", failed=self.failed, **self.queue)
        worker = WorkerStats("w", ("mail",), self.slots, 1, 0, int(self.seen * 1e6))
        stats = Stats([queue], [worker] if self.slots else [], [KeptStats("failed", self.failed, self.dead_bytes)])
        parts = {"archive_failures": self.archive_failures, "save_failed": self.save_failed}
        ended, usage = WaitingEnds(None, self.vault), Usage(self.used, parts=parts)
        beside = Beside(Measured(usage, Budget(bytes=1_000)))
        store = of_store(stats if self.up else None, int(self.now * 1e6), "memory", ended, usage, beside)
        process = Metrics("memory", self.meter, self.counts, self.pulse, None)._process()
        samples = [sample for family in (*process, *store) for sample in family.samples]
        return {(one.name, frozenset({**one.labels, "instance": "pod"}.items())): one.value for one in samples}

    def waits(self, seconds: float, **more: Any) -> None:
        self.queue = {"oldest_due_age": int(seconds * 1e6), "running": 0} | more

    def often(self, times: int, what: Callable[..., Any], *given: Any, **named: Any) -> None:
        for _ in range(times):
            what(*given, **named)


def _alert(name: str) -> Callable[[World], None]:
    """A process raises it, once."""

    def trouble(world: World) -> None:
        if not world.counts.alerts[name]:
            world.counts(Event(EventKind.ALERT, detail=f"{name}: look"))

    return trouble


def _lost(world: World) -> None:
    """A worker with many jobs dies."""
    if not world.meter.upkeep.reclaimed:
        world.often(100, world.meter.upkeep.ran_out, "mail", waits_again=True)


def _set(**given: Any) -> Callable[[World], None]:
    return lambda world: [setattr(world, name, value) for name, value in given.items()] and None


def _unattended(world: World) -> None:
    world.waits(120)
    world.slots = 0


def _dying(world: World) -> None:
    world.failed += 50


def _unarchived(world: World) -> None:
    world.archive_failures += 1


def _silent(world: World) -> None:
    world.seen = world.now - 25


TROUBLES: dict[str, Callable[[World], Any]] = {
    "HeadraceStoreAway": _set(up=False),
    "HeadraceQueueUnattended": _unattended,
    "HeadraceQueueStuck": lambda world: world.waits(120),
    "HeadraceQueueOld": lambda world: world.waits(700, running=1),
    "HeadraceQueueVeryOld": lambda world: world.waits(4_000, running=1),
    "HeadraceManyRunning": lambda world: world.queue.update(running=1_001),
    "HeadraceFailures": lambda world: world.often(60, world.meter.ended, JOB, "retried", 0.0),
    "HeadraceDeadLettersGrow": _dying,
    "HeadraceDeadLettersLarge": _set(dead_bytes=500 * 1024 * 1024),
    "HeadraceBudgetNearlyUsed": _set(used=900),
    "HeadraceRaised": _alert("objects_away"),
    "HeadraceLeasesExpire": _lost,
    "HeadraceLeaseNearlyOver": _alert("lease_nearly_over"),
    "HeadraceCleanupFails": _alert("cleanup_failing"),
    "HeadraceCleanupOverdue": _set(swept=False),
    "HeadraceLeaseUseHigh": lambda world: world.often(20, world.meter.upkeep.used, "mail", 0.97),
    "HeadraceArchiveFails": _unarchived,
    "HeadraceSaveFails": _set(save_failed=1),
    "HeadraceVaultBehind": _set(vault=4_000.0),
    "HeadraceSlotsMissed": _alert("schedule_late"),
    "HeadraceLoopBlocked": lambda world: world.often(20, world.pulse.lag.add, 4.0),
    "HeadraceWorkerSilent": _silent,
}


def rules() -> dict[str, Any]:
    [group] = YAML(typ="safe").load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def test_every_rule_has_a_trouble() -> None:
    assert set(rules()) == set(TROUBLES)


@pytest.mark.parametrize("alert", [one.value for one in Alert])
def test_each_alert_that_a_process_raises_has_a_rule(alert: str) -> None:
    world, samples, fired = World(), Samples(EVERY), set[str]()
    trouble = _set(used=900) if alert == Alert.BUDGET_NEARLY_USED else _alert(alert)
    for minute in range(CALM + TROUBLE):
        samples.add(world.scrape(trouble if minute >= CALM else None))
        if minute >= CALM:
            fired |= {name for name, rule in rules().items() if samples.find(rule["expr"])}
    assert len(fired) == 1, "one rule, and no other"


@pytest.mark.parametrize("name", TROUBLES)
def test_each_rule_comes_on_and_is_over(name: str) -> None:
    rule, world, samples = rules()[name], World(), Samples(EVERY)
    holds_for = micros(rule.get("for", "0s")) / 1e6
    firing: list[bool] = []
    since: float | None = None
    for minute in range(CALM + TROUBLE + AFTER):
        samples.add(world.scrape(TROUBLES[name] if CALM <= minute < CALM + TROUBLE else None))
        since = (world.now if since is None else since) if samples.find(rule["expr"]) else None
        firing.append(since is not None and world.now - since >= holds_for)
    assert not any(firing[:CALM]), "all is well"
    assert any(firing[CALM : CALM + TROUBLE]), "it is on"
    assert not firing[-1], "it is over"
