"""A worker that too many threads of its own keep from working."""

from __future__ import annotations

from headrace.core.alerts import Alert
from headrace.core.events import Observers
from headrace.text import shown
from headrace.worker.bell import Bell
from headrace.worker.runner import Runner
from headrace.worker.strays import Strays

_PER_SLOT = 4
"""Threads that go on although their jobs were given up on. With more of them a worker claims nothing."""


class StrayWatch:
    """Counts threads that go on although their jobs were given up on, and tells of them."""

    def __init__(
        self, strays: Strays, runner: Runner, observers: Observers, bell: Bell, *, worker: str, slots: int
    ) -> None:
        self._strays = strays
        self._runner = runner
        self._observers = observers
        self._worker = worker
        self._most = _PER_SLOT * slots
        strays.came, strays.stays, strays.gone = self._came, self._stays, bell.ring

    def __len__(self) -> int:
        return len(self._strays)

    def __str__(self) -> str:
        if len(self) == 1:
            return "1 thread goes on whose job was given up on"
        return f"{len(self)} threads go on whose jobs were given up on"

    @property
    def stuck(self) -> bool:
        """Whether there are so many that nothing more may be started."""
        return len(self._strays) >= self._most

    def _came(self) -> None:
        if self.stuck:
            self._runner.give_back()
            sentence = f"{self}; worker {self._worker} claims nothing until some of them end"
            self._observers.alert(Alert.TOO_MANY_THREADS, self._worker, sentence, worker=self._worker)

    def _stays(self, task: str) -> None:
        sentence = f"a job of task {shown(task)} was given up on, and its thread goes on; {self}"
        self._observers.alert(Alert.THREAD_LEFT_BEHIND, task, sentence, task=task, worker=self._worker)
