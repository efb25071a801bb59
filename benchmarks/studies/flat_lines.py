"""The numbers that users choose: how a store is filled with so many of something, and what is then asked of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace import App
from headrace.errors import QueueFull
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Leased, Row, Settlement
from headrace.types import JobState

QUEUE = "flat"
FULL = "full"
_HOLDER = "flat"
_LEASE = 3_600_000_000
_HOUR = 3_600_000_000
_LEAST = 1_000
"""So many jobs wait at least, so that the smallest size differs in nothing but that size."""
_LOWEST = -30_000


@dataclass(frozen=True)
class Line:
    """One number that users choose."""

    name: str
    sizes: Sequence[int]
    job: Callable[[int, int], Mapping[str, Any]]
    """Size and number of a job that waits: what it has beside its id, and a queue of that name."""
    calls: Sequence[str] = ("insert", "claim", "finish")
    policy: Mapping[str, Any] | None = None
    proportional: Sequence[str] = ()
    """Calls that name, or answer, as many things as there are: for them only the bound of one call counts."""
    paused: str | None = None
    """A task that is paused."""
    burst: bool = False
    """Measure the first claims after the fill, which otherwise do not count."""
    delay: int = 0
    jobs: int = _LEAST
    at_once: int = 10
    """Calls of one kind that follow each other."""


def lines(scale: float) -> list[Line]:
    """All of them; a small ``scale`` makes small sizes, but for the number 1."""

    def sizes(*given: int) -> list[int]:
        return sorted({max(1, int(size * scale)) if size > 1 else 1 for size in given})

    priorities, tenants, many = sizes(1, 1_000, 60_000), sizes(1, 10_000, 100_000), sizes(1, 10_000)
    combined, tasks = sizes(1, 40_000), sizes(1, 1_000, 10_000)
    rules = {"tenant_batch": 10}
    return [
        Line("priorities, all due", priorities, _priority),
        Line("priorities, few due", priorities, _priority, ("look", "insert", "claim", "finish"), delay=_HOUR),
        Line("tenants, after a burst", tenants, _tenant, ("claim", "insert", "finish"), rules, burst=True),
        Line("tenants", tenants, _tenant, policy=rules),
        Line("tenant, task, priority", combined, _combination, policy=rules),
        Line("tasks of a tenant", tasks, _task, policy=rules),
        Line("tasks of a tenant, one paused", tasks, _task, policy=rules, paused="k0"),
        Line(
            "queues",
            many,
            _queue,
            ("insert", "claim", "finish", "claim of all", "finish", "refused", "stats", "stats of all"),
            proportional=("claim of all", "stats of all"),
        ),
        Line("groups", many, _group, at_once=1),
    ]


def _priority(size: int, number: int) -> Mapping[str, Any]:
    return {"priority": _LOWEST + number % size}


def _tenant(size: int, number: int) -> Mapping[str, Any]:
    return {"tenant": f"t{number % size}"}


def _combination(size: int, number: int) -> Mapping[str, Any]:
    """Four tenants with ten tasks each, and priorities for the rest."""
    which = number % size
    return {"tenant": f"t{which % 4}", "task": f"k{which // 4 % 10}", "priority": which // 40}


def _task(size: int, number: int) -> Mapping[str, Any]:
    """One task that may be paused, and so many others."""
    return {"task": "k0" if number % 10 == 0 else f"k{number % size + 1}"}


def _queue(size: int, number: int) -> Mapping[str, Any]:
    return {"queue": f"q{number % size}"}


def _group(size: int, number: int) -> Mapping[str, Any]:
    return {"group": f"g{number % size}"}


@dataclass
class Filled:
    """A store in which one line has one size."""

    line: Line
    size: int
    app: App
    backend: Backend
    leased: list[Leased] = field(default_factory=list)
    came: deque[str] = field(default_factory=deque)
    """The queues of jobs that came after the fill, and that no claim has named yet."""
    made: int = 0

    def row(self, delay: int = 0) -> Row:
        """The next job."""
        given = {"queue": QUEUE, "task": "nothing", **self.line.job(self.size, self.made)}
        self.made += 1
        return Row(id=self.app.client.packer.new_id(), cells={"parameters": b"0"}, delay=delay, **given)

    def waiting(self) -> Iterable[Row]:
        """All jobs that wait from the beginning."""
        return (self.row(self.line.delay) for _ in range(max(self.line.jobs, self.size)))

    async def prepare(self) -> None:
        """What must be there before the jobs."""
        if self.line.policy is not None:
            await self.app.policies.set(QUEUE, **self.line.policy)
        if self.line.paused is not None:
            await self.app.client.pause(QUEUE, task=self.line.paused)
        if "refused" in self.line.calls:

            @self.app.task(name="refused", queue=FULL)
            async def refused() -> None: ...

            await self.app.policies.set(FULL, depth=1)
            await self.app.enqueue_named("refused", {})

    def call(self, name: str) -> Callable[[], Awaitable[object]]:
        """One call of the store, or of the client."""
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "insert": self._insert,
            "claim": self._claim,
            "claim of all": self._claim_of_all,
            "look": self._look,
            "finish": self._finish,
            "refused": self._refused,
            "stats": self._stats,
            "stats of all": self.backend.stats,
        }
        return calls[name]

    async def _insert(self) -> None:
        row = self.row()
        self.came.append(row.queue)
        await self.backend.insert([row])

    async def _claim(self) -> None:
        await self._take((self.came.popleft() if self.came else QUEUE,))

    async def _claim_of_all(self) -> None:
        await self._take(tuple(f"q{number}" for number in range(self.size)))

    async def _take(self, queues: tuple[str, ...]) -> None:
        found = await self.backend.claim(Claim(_HOLDER, queues, 1, _LEASE))
        if len(found.jobs) != 1:
            raise RuntimeError(f"expected a job of {self.line.name}, {self.size:,}, but the claim brought none")
        self.leased += found.jobs

    async def _look(self) -> None:
        found = await self.backend.claim(Claim(_HOLDER, (QUEUE,), 1, _LEASE))
        if found.jobs:
            raise RuntimeError(f"expected nothing due in {self.line.name}, {self.size:,}, but the claim brought a job")

    async def _finish(self) -> None:
        job = self.leased.pop(0)
        await self.backend.finish([Settlement(job.id, job.epoch, _HOLDER, JobState.COMPLETED, keep=False)])

    async def _stats(self) -> None:
        await self.backend.stats(queues=["q0"])

    async def _refused(self) -> None:
        try:
            await self.app.enqueue_named("refused", {})
        except QueueFull:
            return
        raise RuntimeError("expected QueueFull, but the job was taken")
