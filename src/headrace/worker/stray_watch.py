"""What a worker does about its strays: it tells of them, and with too many of them it claims nothing."""

from __future__ import annotations

from headrace.core.alerts import Alert
from headrace.text import shown
from headrace.worker.kit import Kit
from headrace.worker.runner import Runner
from headrace.worker.strays import Strays

_PER_SLOT = 4
"""With this many strays per slot, a worker claims nothing."""


class StrayWatch:
    """Watches the strays of one worker."""

    def __init__(self, strays: Strays, runner: Runner, kit: Kit) -> None:
        self._strays = strays
        self._runner = runner
        self._observers, self._worker, self._bell = kit.observers, kit.name, kit.bell
        self._most = _PER_SLOT * kit.settings.worker.concurrency
        strays.watcher = self

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

    def came(self) -> None:
        """If there are too many now, the jobs that wait in the buffer go back to the store."""
        if self.stuck:
            self._runner.give_back()
            sentence = f"{self}; worker {self._worker} claims nothing until some of them end"
            self._observers.alert(Alert.TOO_MANY_THREADS, self._worker, sentence, worker=self._worker)

    def stays(self, task: str) -> None:
        """Alert observers to the task."""
        sentence = f"a job of task {shown(task)} was given up on, and its thread goes on; {self}"
        self._observers.alert(Alert.THREAD_LEFT_BEHIND, task, sentence, task=task, worker=self._worker)

    def went(self) -> None:
        """The worker may claim again."""
        self._bell.ring()
