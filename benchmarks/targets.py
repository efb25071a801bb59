"""The targets, as bounds on figures or on their ratios, and what a run says about each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.results import Run, shown


@dataclass(frozen=True)
class Target:
    """``system``'s figure against a bound; divided by another's if some are named, and by the best of them all."""

    what: str
    system: str
    metric: str
    bound: float
    at_least: bool = True
    against: tuple[tuple[str, str], ...] = ()
    cores: int = 0
    """It means nothing on a machine with fewer."""

    def judge(self, run: Run) -> Verdict:
        """What the run says."""
        if run.machine.get("cores", self.cores) < self.cores:
            return Verdict(self, None, f"expected {self.cores} cores, got {run.machine['cores']}")
        ours = run.find(self.system, self.metric)
        theirs = [found for where in self.against if (found := run.find(*where)) is not None]
        if ours is None or len(theirs) < len(self.against):  # the one that is missing may be the best
            return Verdict(self, None, "")
        void = run.volatile and ours.backend != "memory"
        if not theirs:
            return Verdict(self, ours.median, "", void)
        best = max(theirs, key=lambda result: result.median)
        if not best.median:
            return Verdict(self, None, "")
        figures = f"{shown(ours.median)} : {shown(best.median)} {ours.unit}"
        return Verdict(self, ours.median / best.median, figures, void)


@dataclass(frozen=True)
class Verdict:
    """A target and the value that it was held against; None if a figure is missing."""

    target: Target
    value: float | None
    figures: str
    void: bool = False
    """The stores were in memory, where nothing is made durable and so nothing is paid for it."""

    @property
    def word(self) -> str:
        if self.value is None:
            return "not measured"
        if self.void:
            return "void"
        reached = self.value >= self.target.bound if self.target.at_least else self.value <= self.target.bound
        return "reached" if reached else "MISSED"


def _sqlite(level: str) -> list[Target]:
    ours, ceiling, bare = f"headrace-sqlite-{level}", f"minimal-sqlite-{level}", f"bare-sqlite-{level}"
    alike = "litequeue" if level == "normal" else "litequeue-full"
    litequeue = (("litequeue", "drain"), ("litequeue", "drain_shallow"))
    return [
        Target("drain against litequeue at its default", ours, "drain", 5, against=litequeue),
        Target("drain against Huey", ours, "drain", 9, against=(("huey-sqlite", "drain"),)),
        Target("drain against the ceiling", ours, "drain", 0.25, against=((ceiling, "drain"),)),
        Target("enqueue against litequeue, equally durable", ours, "enqueue", 0.5, against=((alike, "enqueue"),)),
        Target("enqueue, 200 callers against one", ours, "concurrent", 8, against=((ours, "enqueue"),)),
        Target("bulk enqueue, jobs made, against bare", ours, "bulk_whole", 0.6, against=((bare, "bulk"),)),
        Target("idle pick-up p50, ms", ours, "pickup_p50", 3, at_least=False),
        Target("idle pick-up p99, ms", ours, "pickup_p99", 15, at_least=False),
        Target("request/response p50, ms", ours, "reply_p50", 5, at_least=False),
        Target("drain at depth against shallow", ours, "depth_ratio", 0.9),
        Target("trips per drained job", ours, "trips", 0.05, at_least=False),
        Target("worker memory, 1,000 slots of 4.5 KB, MB", ours, "memory_peak", 150, at_least=False),
    ]


def _postgres() -> list[Target]:
    ours, legacy = "headrace-postgres", "legacy-postgres"
    peers = ("pgqueuer", "awa", "chancy", "procrastinate")
    budgets = {"enqueue": 10, "claim": 50, "poll": 10, "update": 10}
    return [
        Target("drain against PgQueuer", ours, "drain", 2.5, against=(("pgqueuer", "drain"),)),
        Target("drain against the ceiling", ours, "drain", 0.45, against=(("minimal-postgres", "drain"),)),
        Target("enqueue against the best peer", ours, "enqueue", 1, against=tuple((peer, "enqueue") for peer in peers)),
        Target("enqueue, 200 callers against one", ours, "concurrent", 8, against=((ours, "enqueue"),)),
        Target("bulk enqueue, jobs made, against COPY", ours, "bulk_whole", 0.6, against=(("bare-postgres", "bulk"),)),
        Target("idle pick-up p50, ms", ours, "pickup_p50", 3, at_least=False),
        Target("idle pick-up p99, ms", ours, "pickup_p99", 15, at_least=False),
        Target("request/response p50, ms", ours, "reply_p50", 6, at_least=False),
        Target("drain at depth against shallow", ours, "depth_ratio", 0.9),
        Target("claim p99 at depth against shallow", ours, "claim_ratio", 2, at_least=False),
        Target("drain under a held snapshot against before", ours, "held_ratio", 0.8),
        Target("statements per drained job", ours, "statements", 0.05, at_least=False),
        Target("log bytes beyond the payload, no history", ours, "wal_bare_beyond", 1_000, at_least=False),
        Target("log bytes beyond the payload, reference load", ours, "wal_random_beyond", 1_500, at_least=False),
        Target("log bytes against legacy, incompressible", ours, "wal_random", 0.65, False, ((legacy, "wal_random"),)),
        Target("log bytes, JSON-like, against the same", ours, "wal_json", 0.35, False, ((legacy, "wal_random"),)),
        Target("worker memory, 1,000 slots of 4.5 KB, MB", ours, "memory_peak", 150, at_least=False),
        Target("two worker processes against one", ours, "pair_ratio", 1.6, cores=3),
        *(
            Target(f"{step} p99 among 100 workers, ms", ours, f"crowd_{step}_p99", budget, at_least=False)
            for step, budget in budgets.items()
        ),
    ]


def _valkey() -> list[Target]:
    ours = "headrace-valkey"
    peers = ("dramatiq", "huey-valkey", "taskiq-list", "taskiq-stream", "arq", "celery", "rq")
    return [
        Target("drain against Dramatiq", ours, "drain", 8, against=(("dramatiq", "drain"),)),
        Target("drain against the ceiling", ours, "drain", 0.2, against=(("minimal-valkey", "drain"),)),
        Target("enqueue against the best peer", ours, "enqueue", 1, against=tuple((peer, "enqueue") for peer in peers)),
        Target("enqueue, 200 callers against one", ours, "concurrent", 6, against=((ours, "enqueue"),)),
        Target(
            "bulk enqueue, jobs made, against a pipeline", ours, "bulk_whole", 0.6, against=(("bare-valkey", "bulk"),)
        ),
        Target("idle pick-up p50, ms", ours, "pickup_p50", 1.2, at_least=False),
        Target("idle pick-up p99, ms", ours, "pickup_p99", 4, at_least=False),
        Target("request/response p50, ms", ours, "reply_p50", 2.5, at_least=False),
        Target("drain at depth against shallow", ours, "depth_ratio", 0.95),
        Target("trips per drained job", ours, "statements", 0.05, at_least=False),
        Target("worker memory, 1,000 slots of 4.5 KB, MB", ours, "memory_peak", 150, at_least=False),
        Target("server memory when drained and swept, against before", ours, "resident_ratio", 1.05, at_least=False),
        Target("two worker processes against one", ours, "pair_ratio", 1.6, cores=3),
    ]


@dataclass(frozen=True)
class Single:
    """What one job by itself may take: to be stored, to be picked up, and to be answered."""

    store: str
    ours: str
    peers: tuple[str, ...]
    sync_peers: tuple[str, ...]
    bare: str
    pickup: float
    reply: float

    def targets(self) -> list[Target]:
        """All of one store; the best peer is the best that makes jobs as durable."""
        ours, peers = self.ours, [(name, "enqueue") for name in self.peers]
        return [
            Target("one enqueue against the best peer", ours, "enqueue", 1, against=tuple(peers)),
            Target(
                "CPU of one enqueue against the bare driver", ours, "enqueue_cpu", 1.3, at_least=False,
                against=((self.bare, "enqueue_cpu"),),
            ),
            *self.blocking(),
            Target("one pick-up p50, ms", ours, "pickup_p50", self.pickup, at_least=False),
            Target("one reply p50, ms", ours, "reply_p50", self.reply, at_least=False),
        ]  # fmt: skip

    @property
    def sync(self) -> str:
        """Ours, called by code that blocks."""
        return f"headrace-{self.store}-sync"

    def blocking(self) -> list[Target]:
        """What code that blocks may expect."""
        awaited, peers = (self.ours, "enqueue"), tuple((name, "enqueue") for name in self.sync_peers)
        return [
            Target("one blocking enqueue against an awaited one", self.sync, "enqueue", 0.9, against=(awaited,)),
            Target("one blocking enqueue against the best peer", self.sync, "enqueue", 1, against=peers),
        ]


_SQLITE_PEERS = ("litequeue-full", "huey-sqlite")
_POSTGRES_PEERS = ("pgqueuer", "awa", "chancy", "procrastinate")
_VALKEY_PEERS = ("huey-valkey", "dramatiq", "celery", "rq")
_SQLITE_BLOCKING = (*_SQLITE_PEERS, "celery-sqlite", "django-q-sqlite", "django-tasks-sqlite")
_POSTGRES_BLOCKING = (
    "procrastinate-sync", "chancy-sync", "huey-postgres", "dramatiq-postgres", "celery-postgres", "django-q-postgres",
    "django-tasks-postgres",
)  # fmt: skip
SINGLE = (
    Single("sqlite", "headrace-sqlite-full", _SQLITE_PEERS, _SQLITE_BLOCKING, "bare-sqlite-full", 1.2, 1.5),
    Single("postgres", "headrace-postgres", _POSTGRES_PEERS, _POSTGRES_BLOCKING, "bare-postgres", 2.5, 3.5),
    Single(
        "valkey", "headrace-valkey", (*_VALKEY_PEERS, "taskiq-list", "taskiq-stream", "arq"),
        (*_VALKEY_PEERS, "django-q-valkey"), "bare-valkey", 1.2, 1.2,
    ),
)  # fmt: skip

TARGETS: tuple[Target, ...] = (
    Target("no-op async jobs per second on memory", "headrace-memory", "drain", 40_000),
    Target("CPU per no-op job on memory, µs", "headrace-memory", "drain_cpu", 25, at_least=False),
    Target("import headrace, ms", "headrace-memory", "import", 150, at_least=False),
    Target("from headrace import App, ms", "headrace-memory", "import_app", 150, at_least=False),
    Target("headrace --help, ms", "headrace-memory", "help", 300, at_least=False),
    *_sqlite("full"),
    *_sqlite("normal"),
    *_postgres(),
    *_valkey(),
    *(target for single in SINGLE for target in single.targets()),
    Target(
        "drain against litequeue at its best depth", "headrace-sqlite-full", "drain", 6,
        against=(("litequeue", "drain"), ("litequeue", "drain_shallow")),
    ),
    Target("server CPU per drained job, µs", "headrace-postgres", "drain_server_cpu", 20, at_least=False),
    Target("worker CPU per drained job, µs", "headrace-postgres", "drain_cpu", 9, at_least=False),
    Target("drain against Dramatiq, one process", "headrace-valkey", "drain", 10, against=(("dramatiq", "drain"),)),
    Target("worker CPU per no-op job on memory, µs", "headrace-memory", "drain_cpu", 10, at_least=False),
)  # fmt: skip


def verdicts(run: Run, targets: Iterable[Target] = TARGETS) -> list[Verdict]:
    """The targets of all systems that took part, held against the run."""
    return [target.judge(run) for target in targets if target.system in run.versions]


def report(found: Iterable[Verdict]) -> str:
    """One line per target, the missed ones as plain to see as the others."""
    lines = []
    for verdict in found:
        target = verdict.target
        sign = "≥" if target.at_least else "≤"
        value = "–" if verdict.value is None else shown(verdict.value)
        line = f"{verdict.word:<12}  {target.system:<22}  {target.what:<54}  {value:>10}  {sign} {target.bound:g}"
        lines.append(f"{line}  ({verdict.figures})" if verdict.figures else line)
    return "\n".join(lines)
