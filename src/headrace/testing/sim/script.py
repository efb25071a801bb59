"""What jobs do when they run: drawn from the seed, the job's id and its epoch, so that it needs no memory."""

from __future__ import annotations

from random import Random

from msgspec import Struct

from headrace.payloads.codec import RAW, Envelope
from headrace.seam.records import JobId, Row
from headrace.types import JobState

SECOND = 1_000_000
TASKS = ("mail", "report", "thumb", "spawned")
_ENVELOPE = Envelope(max_size=1_000_000, compress_over=None)


def wrapped(body: bytes) -> bytes:
    """A cell as the core writes it, so that the real worker can open it."""
    return _ENVELOPE.wrap(body, RAW, "cell")


class Act(Struct, frozen=True, kw_only=True):
    """One run of a handler: how long it takes and how it ends."""

    duration: int
    state: JobState
    """The state that its outcome asks for; AVAILABLE for retries and snoozes."""
    failed: bool = False
    """AVAILABLE: this was an attempt, and after the last one allowed the job has failed."""
    delay: int | None = 0
    result: bytes | None = None
    result_ttl: int = 0
    keep: bool = True
    cells: dict[str, bytes | None] | None = None
    """Sections to replace or clear, not wrapped yet."""
    queue: str | None = None
    priority: int | None = None
    spawn: tuple[Row, ...] = ()
    kills: bool = False
    """Takes its whole node down half-way."""


class Script(Struct, frozen=True, kw_only=True):
    """The chances of what handlers do."""

    seed: int | str
    queues: tuple[str, ...] = ("a", "b", "c")
    long: float = 0.08
    """Takes about as long as a lease, or longer."""
    retry: float = 0.15
    snooze: float = 0.08
    fail: float = 0.05
    pause: float = 0.03
    poison: float = 0.01
    """Jobs that kill their node each time they are run."""
    spawn: float = 0.12
    patch: float = 0.3
    move: float = 0.04

    def act(self, job_id: JobId, epoch: int) -> Act:
        """What this run of the job does."""
        rng = Random(f"{self.seed}:{job_id.hex()}:{epoch}")
        duration = rng.randint(2_500_000, 8_000_000) if rng.random() < self.long else rng.randint(1_000, 400_000)
        if Random(f"{self.seed}:{job_id.hex()}").random() < self.poison:
            return Act(duration=duration, state=JobState.FAILED, kills=True)
        lot = rng.random()
        cells = self._patch(rng, epoch)
        queue = rng.choice(self.queues) if rng.random() < self.move else None
        spawn = self._spawn(rng) if rng.random() < self.spawn else ()
        if (lot := lot - self.retry) < 0:
            delay = rng.randint(0, 2 * SECOND)
            return Act(duration=duration, state=JobState.AVAILABLE, failed=True, delay=delay, cells=cells, queue=queue)
        if (lot := lot - self.snooze) < 0:
            back = rng.choice((None, 0, rng.randint(0, SECOND)))
            return Act(
                duration=duration, state=JobState.AVAILABLE, delay=back, cells=cells, priority=rng.randint(-1, 2)
            )
        if (lot := lot - self.fail) < 0:
            return Act(duration=duration, state=JobState.FAILED, failed=True, cells=cells)
        if lot - self.pause < 0:
            return Act(duration=duration, state=JobState.PAUSED, cells=cells)
        return Act(
            duration=duration,
            state=JobState.COMPLETED,
            result=rng.choice((None, b"", f"{job_id.hex()}/{epoch}".encode())),
            result_ttl=rng.choice((0, 2 * SECOND, 6 * SECOND, 60 * SECOND)),
            keep=rng.random() > 0.05,
            cells=cells,
            spawn=spawn,
        )

    def _patch(self, rng: Random, epoch: int) -> dict[str, bytes | None] | None:
        if rng.random() >= self.patch:
            return None
        return {rng.choice(("vm_state", "metadata", "blob")): rng.choice((None, b"", f"epoch {epoch}".encode()))}

    def _spawn(self, rng: Random) -> tuple[Row, ...]:
        def row() -> Row:
            key = rng.choice((None, f"k{rng.randrange(6)}"))
            return Row(
                rng.randbytes(16),
                rng.choice(self.queues),
                "spawned",
                {"parameters": wrapped(rng.randbytes(4))},
                key=key,
                delay=rng.choice((0, rng.randint(0, SECOND))),
                max_attempts=2,
            )

        return tuple(row() for _ in range(rng.randint(1, 2)))
