"""Alerts: each comes on, says so once, and is over when its cause is."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from headrace import Overview, QueueView
from headrace.admin.firing import AlertChange, Firing, Level
from headrace.admin.views import KeptView
from headrace.admin.watch import Watch
from headrace.admin.webhook import Webhook
from headrace.core.alerts import Alert
from headrace.core.clock import ManualClock
from headrace.core.config import AlertSettings, RetentionSettings
from headrace.core.events import Event, EventKind
from headrace.core.feed import Digest, Happening, Tally
from headrace.core.meter import Meter
from headrace.errors import ConfigError
from headrace.keeping.budget import Budget, Measured
from headrace.keeping.waiting_ends import WaitingEnds
from headrace.seam.records import KeptStats, Leased, QueueStats, Stats, WorkerStats
from headrace.seam.usage import Usage
from headrace.web.families import expose
from headrace.web.metrics import EventCounts, Metrics
from headrace.web.pulse import Pulse
from headrace.web.store_metrics import Beside, of_store
from tests.facades.harness import settings

DEPLOY = Path(__file__).parents[2] / "deploy"
MIB = 1024 * 1024


def seen(*queues: QueueView, dead_bytes: int = 0, store_bytes: int = 0, **more: Any) -> Overview:
    return Overview("memory://", None, list(queues), [], [KeptView("failed", 1, dead_bytes)], store_bytes, **more)


def queue(**given: Any) -> QueueView:
    return QueueView("mail", **({"workers": 1, "slots": 10, "busy": 1} | given))


WELL = seen(queue())
GIVEN = AlertSettings(store_bytes=1_000 * MIB)


class Watched:
    """A watch, and what its hook was told."""

    def __init__(self, given: AlertSettings = GIVEN) -> None:
        self.told: list[AlertChange] = []
        self.watch = Watch(given, RetentionSettings(), [self.told.append])
        self.now = 0.0

    async def look(self, overview: Overview | None, later: float = 15.0) -> list[tuple[str, str]]:
        self.now += later
        self.watch.look(overview, self.now)
        return [(one.name, one.level.value) for one in self.watch.firing]


async def _grown(watched: Watched) -> Overview:
    await watched.look(seen(queue(failed=50)))
    return seen(queue(failed=150))


async def _failing(watched: Watched) -> Overview:
    tallies = [Tally("mail", "send", "retried", 15), Tally("mail", "send", "completed", 10)]
    watched.watch.hear(Digest("web-1", 0, tallies), watched.now)
    return WELL


def _raised(alert: Alert) -> Callable[[Watched], Any]:
    """Some process raises it."""

    async def give(watched: Watched) -> Overview:
        told = Happening("alert", 0, b"", "mail", detail=f"{alert.value}: somebody should look")
        watched.watch.hear(Digest("web-1", 0, [], [told]), watched.now)
        return WELL

    return give


def _is(overview: Overview | None) -> Callable[[Watched], Any]:
    async def give(watched: Watched) -> Overview | None:
        return overview

    return give


ALERTS: list[tuple[str, str, Callable[[Watched], Any]]] = [
    ("store_away", "critical", _is(None)),
    ("queue_unattended", "critical", _is(seen(queue(oldest_due_seconds=61.0, workers=0, slots=0, busy=0)))),
    ("queue_stuck", "warning", _is(seen(queue(oldest_due_seconds=61.0, busy=0)))),
    ("queue_old", "warning", _is(seen(queue(oldest_due_seconds=601.0)))),
    ("queue_old", "critical", _is(seen(queue(oldest_due_seconds=3_601.0)))),
    ("many_running", "warning", _is(seen(queue(running=1_001)))),
    ("dead_letters_grow", "warning", _grown),
    ("dead_letters_large", "warning", _is(seen(queue(), dead_bytes=420 * MIB))),
    ("failures", "warning", _failing),
    ("store_large", "warning", _is(seen(queue(), store_bytes=801 * MIB))),
    ("vault_behind", "warning", _is(seen(queue(), vault_lag_seconds=3_601.0))),
    *((alert.value, "warning", _raised(alert)) for alert in Alert),
]


@pytest.mark.parametrize(("name", "level", "cause"), ALERTS, ids=lambda one: str(one) if isinstance(one, str) else "")
async def test_each_alert_comes_on_and_is_over(name: str, level: str, cause: Callable[[Watched], Any]) -> None:
    watched = Watched()
    assert await watched.look(WELL) == []
    overview = await cause(watched)
    assert await watched.look(overview) == [(name, level)]
    assert await watched.look(overview) == [(name, level)]
    assert [(one.alert.name, one.on) for one in watched.told] == [(name, True)], "told once"
    after = seen(queue(failed=overview.queues[0].failed)) if overview is not None else WELL
    assert await watched.look(after, later=601.0) == []
    assert [(one.alert.name, one.on) for one in watched.told] == [(name, True), (name, False)]


def _told(alert: Alert, subject: str, sentence: str, again_in: float = 0.0) -> Digest:
    happening = Happening("alert", 0, queue="mail", detail=f"{alert}: {sentence}", again_in=again_in, subject=subject)
    return Digest("web-1", 0, [], [happening])


async def test_raised_alerts_of_different_subjects_are_told_apart() -> None:
    watched = Watched()
    for schedule in ("nightly", "hourly"):
        watched.watch.hear(_told(Alert.SCHEDULE_LATE, schedule, f"{schedule} is late"), watched.now)
    await watched.look(WELL)
    found = [(one.subject, one.queue, one.sentence) for one in watched.watch.firing]
    assert found == [("hourly", "mail", "hourly is late"), ("nightly", "mail", "nightly is late")]


async def test_a_raised_alert_lasts_until_it_is_no_longer_repeated() -> None:
    watched = Watched()
    for _ in range(3):
        watched.watch.hear(_told(Alert.CLEANUP_FAILING, "completed", "failed", again_in=3_600.0), watched.now)
        assert await watched.look(WELL, later=3_600.0) == [("cleanup_failing", "warning")]
    assert await watched.look(WELL, later=3_600.0) == [("cleanup_failing", "warning")]
    assert await watched.look(WELL, later=3_600.0) == []
    assert [one.on for one in watched.told] == [True, False]


async def test_a_slow_hook_holds_up_neither_the_watch_nor_others() -> None:
    going_on, slow, quick = asyncio.Event(), [], []

    async def wait(change: AlertChange) -> None:
        await going_on.wait()
        slow.append(change.on)

    watch = Watch(GIVEN, RetentionSettings(), [wait, lambda change: quick.append(change.on)])
    for now in range(10):
        watch.look(WELL if now % 2 else None, now)
    assert quick == [True, False] * 5
    assert slow == []
    going_on.set()
    await watch.hooks.told()
    assert slow == quick, "in order, and each"


async def test_a_change_of_level_is_told_and_a_paused_queue_is_not() -> None:
    watched = Watched()
    await watched.look(seen(queue(oldest_due_seconds=700.0)))
    await watched.look(seen(queue(oldest_due_seconds=4_000.0)))
    assert [(one.alert.level, one.on) for one in watched.told] == [(Level.WARNING, True), (Level.CRITICAL, True)]
    assert await watched.look(seen(queue(oldest_due_seconds=4_000.0, paused=True))) == []


async def test_a_hook_that_raises_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken(change: AlertChange) -> None:
        raise ValueError("broken")

    told: list[AlertChange] = []

    async def hook(change: AlertChange) -> None:
        told.append(change)

    watch = Watch(GIVEN, RetentionSettings(), [broken, hook])
    with caplog.at_level(logging.INFO, "headrace.alerts"):
        watch.look(None, 0.0)
        watch.look(WELL, 1.0)
        await watch.hooks.told()
    assert [one.on for one in told] == [True, False]
    lines = [record.message for record in caplog.records]
    assert "store_away: the store does not answer" in lines
    assert "store_away: over" in lines
    assert "a hook for alerts raised" in lines


async def test_names_cannot_forge_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """X12."""
    watch = Watch(GIVEN, RetentionSettings())
    with caplog.at_level(logging.INFO, "headrace.alerts"):
        watch.look(seen(QueueView("a\nforged: line\x1b[2J", oldest_due_seconds=99.0)), 0.0)
    [record] = caplog.records
    assert "\n" not in record.message
    assert "\x1b" not in record.message


class _Receiver(BaseHTTPRequestHandler):
    got: list[Any]
    answers: list[int]

    def do_POST(self) -> None:
        self.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.answers.pop(0) if self.answers else 200)
        self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.end_headers()

    def log_message(self, *args: Any) -> None: ...


async def test_a_webhook_is_told_and_asked_again() -> None:
    receiver = type("Receiver", (_Receiver,), {"got": [], "answers": [500, 302]})
    server = HTTPServer(("127.0.0.1", 0), receiver)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        hook = Webhook(f"http://127.0.0.1:{server.server_port}/alerts")
        async with asyncio.timeout(60):
            await hook(AlertChange(Firing("queue_old", Level.WARNING, "mail", "waited"), on=True))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    told = {"name": "queue_old", "level": "warning", "subject": "mail", "sentence": "waited", "queue": "", "on": True}
    assert receiver.got == [told] * 3  # type: ignore[attr-defined]


async def test_a_webhook_that_is_away_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(60):
        await Webhook("http://ada:s3cret@127.0.0.1:9/x")(AlertChange(Firing("a", Level.WARNING, "", "b"), on=True))
    assert "did not take an alert" in caplog.text
    assert "s3cret" not in caplog.text


def test_settings_are_checked() -> None:
    for given, told in (
        ({"failure_ratio": 2.0}, "a share from 0 to 1"),
        ({"every": "0s"}, "at least 10ms"),
        ({"dead_letters": 0}, "at least 1"),
        ({"webhook": "ftp://x"}, "expected a URL"),
    ):
        with pytest.raises(ConfigError, match=told):
            settings(alerts=given)
    assert "s3cret" not in repr(settings(alerts={"webhook": "https://x/s3cret"}))


def test_rules_and_board_name_metrics_and_labels_that_exist() -> None:
    meter, counts, pulse = Meter(ManualClock()), EventCounts(), Pulse()
    job = Leased(b"x" * 16, "mail", "send", {}, 1)
    meter.completed(job, 0.0)
    meter.ended(job, "retried", 1.0)
    meter.count("mail", "send", "enqueued")
    meter.called("claim", 0.1)
    pulse.lag.add(0.1)
    upkeep = meter.upkeep
    upkeep.used("mail", 0.5)
    upkeep.ran_out("mail", waits_again=True)
    upkeep.ticked("nightly", "missed", 1)
    upkeep.swept("completed", 0.1, 1.0)
    upkeep.requested("vault", "create", 0.1, 1)
    for event in (
        Event(EventKind.SWEPT, detail="3 from completed", count=3), Event(EventKind.ALERT, detail="cleanup_failing: x"),
    ):  # fmt: skip
        counts(event)
    stats = Stats(
        [QueueStats("mail", available=1)], [WorkerStats("w", ("mail",), 1, 1, 0, 0)], [KeptStats("failed", 1, 1)]
    )
    beside = Beside(Measured(Usage(1), Budget(bytes=10)))
    text = expose(
        [
            *Metrics("memory", meter, counts, pulse, None)._process(),
            *of_store(stats, 0, "memory", WaitingEnds(1.0, 1.0), Usage(1, parts={"wal": 1}), beside),
        ]
    ).decode()
    known = {
        found[1]: set(re.findall(r'(\w+)="', found[0])) for found in re.finditer(r"(?m)^(headrace_\w+)[^\n]*$", text)
    }
    rules = (DEPLOY / "prometheus/headrace-rules.yml").read_text()
    board = json.loads((DEPLOY / "grafana/headrace.json").read_text())
    exprs = re.findall(r"expr: (.*)", rules)
    exprs += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(exprs) > 30
    for expr in exprs:
        for name, labels in re.findall(r"(headrace_\w+)(?:\{([^}]*)\})?", expr):
            assert name in known, f"{name} in {expr}"
            assert set(re.findall(r'(\w+)[=!]~?"', labels)) <= known[name], expr
        assert expr.count("(") == expr.count(")")
    links = re.findall(r'"url": "([^"]+)"', json.dumps(board))
    assert len(links) >= 5
    assert {link.partition("?")[0] for link in links} == {
        f"${{dashboard}}/{page}" for page in ("", "jobs", "api/v1/alerts")
    }
    panels = {panel["gridPos"]["x"] + 100 * panel["gridPos"]["y"] for panel in board["panels"]}
    assert len(panels) == len(board["panels"])
