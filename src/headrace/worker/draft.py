"""Changes to a job that is held, until it is released: nothing of them is stored before."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from headrace.errors import InvalidJob
from headrace.payloads.pack import Packer
from headrace.seam.records import SETTLED, Leased, Row, Settlement
from headrace.text import shown
from headrace.types import JobState, Patch, Sections
from headrace.worker.judge import Judge

_STATES = ", ".join(sorted(state.value for state in SETTLED))


class Draft:
    """What is to change of one job. What was not touched stays as it is; None clears a section."""

    __slots__ = ("cells", "delay", "error", "priority", "queue", "run_at", "sections", "spawn", "state")

    def __init__(self) -> None:
        self.state: JobState | None = None
        self.error: str | None = None
        self.queue: str | None = None
        self.priority: int | None = None
        self.run_at: int | None = None
        self.delay: int | None = None
        self.sections: dict[str, bytes | None] = {}
        self.cells: dict[str, bytes | None] = {}
        """Sections that a release has packed. Their bodies are not kept beside: they may be large."""
        self.spawn: list[Row] = []

    def set_state(self, state: JobState | str, error: str | None) -> None:
        """The state that the release ends in. ``running`` is a state too, but nothing can be released in it."""
        try:
            found = JobState(state)
        except ValueError:
            raise InvalidJob(f"state: expected one of {_STATES}, got {shown(state)}") from None
        if error is not None and not isinstance(error, str):
            raise InvalidJob(f"error: expected a str, got {type(error).__name__}")
        if error is not None and found not in (JobState.AVAILABLE, JobState.FAILED):
            raise InvalidJob(f"error: expected none for the state {found.value}, got {shown(error)}")
        self.state, self.error = found, error

    def set_section(self, name: str, body: bytes | None) -> None:
        """The new bytes of a section; None clears it."""
        if body is not None and not isinstance(body, bytes):
            raise InvalidJob(f"section {name}: expected bytes, or None to clear it, got {type(body).__name__}")
        self.sections[name] = body

    def check(self) -> JobState:
        """The state, if the job can be released in it."""
        if self.state is None:
            raise InvalidJob(f"state: expected one of {_STATES}, got none; call set_state(…), then release() again")
        if self.state not in SETTLED:
            raise InvalidJob(f"state: expected one of {_STATES}, got {self.state.value}; nothing was released")
        return self.state

    def settlement(self, leased: Leased, holder: str, packer: Packer, judge: Judge) -> Settlement:
        """All changes as one settlement. They can be settled once more, if this settlement is rejected."""
        state = self.check()
        waits = state in (JobState.AVAILABLE, JobState.PAUSED)
        if not waits and (self.run_at is not None or self.delay is not None):
            raise InvalidJob(f"scheduled: expected none for the state {state.value}, as the job does not run again")
        failed = self.error is not None or state is JobState.FAILED
        self.cells |= packer.patch(Patch(sections=_sections(self.sections)), leased.id, leased.tenant)
        self.sections.clear()
        return Settlement(
            leased.id,
            leased.epoch,
            holder,
            state,
            delay=self.delay,
            failed_attempt=failed,
            queue=self.queue,
            priority=self.priority,
            cells=dict(self.cells),
            error=judge.told(leased, self.error or "") if failed else None,
            reason={JobState.FAILED: "failed", JobState.CANCELLED: "cancelled"}.get(state, ""),
            result_ttl=(leased.result_ttl or 0) if state is JobState.COMPLETED else 0,
            spawn=self.spawn,
            run_at=self.run_at,
        )


def _sections(changes: dict[str, bytes | None]) -> Sections:
    given: dict[str, Any] = {**changes}
    kept: dict[str, UnsetType] = dict.fromkeys(Sections.__struct_fields__, UNSET)
    return Sections(**(kept | given))
