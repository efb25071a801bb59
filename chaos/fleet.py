"""Worker processes that are killed and replaced."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from chaos.worker import AHEAD, LEASE


class Fleet:
    """A fixed number of workers; a killed one is replaced at once, as a supervisor would."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        size: int,
        seconds: float,
        rng: random.Random,
        max_lost: int = 20,
        lease: float = LEASE,
        ahead: float = AHEAD,
        witness: bool = False,
        objects: str = "",
        lined: bool = False,
    ) -> None:
        given = (url, folder, seconds, max_lost, lease, ahead, witness, objects, lined)
        self._command = [sys.executable, "-m", "chaos.worker", *map(str, given)]
        self._errors = folder / "stderr.txt"
        self._rng = rng
        self._workers = [self._start() for _ in range(size)]
        self.killed: dict[int, int] = {}
        """When which process was killed, by the machine's monotonic clock."""

    @property
    def kills(self) -> int:
        return len(self.killed)

    @property
    def pids(self) -> list[int]:
        """Of those that are there now."""
        return [worker.pid for worker in self._workers]

    def _start(self) -> subprocess.Popen[bytes]:
        with self._errors.open("ab") as errors:
            return subprocess.Popen(self._command, stderr=errors, cwd=Path(__file__).parent.parent)

    def kill_one(self) -> None:
        """SIGKILL a random worker and start another in its place."""
        victim = self._rng.randrange(len(self._workers))
        worker = self._workers[victim]
        if worker.poll() is None:
            os.kill(worker.pid, signal.SIGKILL)
            self.killed[worker.pid] = time.monotonic_ns()
        worker.wait()
        self._workers[victim] = self._start()

    def freeze(self, pid: int) -> None:
        """SIGSTOP: the process stands still, and the world goes on."""
        os.kill(pid, signal.SIGSTOP)

    def thaw(self, pid: int) -> None:
        """SIGCONT."""
        os.kill(pid, signal.SIGCONT)

    def replace_dead(self) -> int:
        """Start another in the place of every worker that was killed by its own job; how many there were."""
        dead = [place for place, worker in enumerate(self._workers) if worker.poll() is not None]
        for place in dead:
            self._workers[place] = self._start()
        return len(dead)

    def crashed(self) -> int:
        """Workers that ended by themselves."""
        return sum(worker.poll() is not None for worker in self._workers)

    def errors(self) -> str:
        """What the workers complained about."""
        return self._errors.read_text() if self._errors.exists() else ""

    def stop(self, patience: float = 30.0) -> list[int]:
        """SIGTERM all and wait; their exit codes."""
        for worker in self._workers:
            if worker.poll() is None:
                worker.terminate()
        codes = []
        for worker in self._workers:
            try:
                codes.append(worker.wait(patience))
            except subprocess.TimeoutExpired:
                worker.kill()
                codes.append(worker.wait())
        return codes
