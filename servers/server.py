"""A server program in a directory of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path


class Server(ABC):
    """One process in a temporary directory; started, killed and started again as a test likes."""

    def __init__(self, name: str, root: Path | str | None, environment: Mapping[str, str] | None = None) -> None:
        self.directory = tempfile.mkdtemp(prefix=f"headrace-{name}-", dir=root)
        self._environment = os.environ | dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _command(self) -> list[str]:
        """What starts it."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it serves by now."""

    def start(self) -> None:
        """Start, and wait until it answers."""
        command = self._command()
        with open(os.path.join(self.directory, "log"), "ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env=self._environment
            )
        while not self._answers():
            if self._process.poll() is not None:
                raise RuntimeError(f"{command[0]} did not start:\n{self.log()}")
            time.sleep(0.005)

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Ask it to end."""
        self._end(kill=False)

    def kill(self) -> None:
        """As the kernel would."""
        self._end(kill=True)

    def _end(self, *, kill: bool) -> None:
        if self._process is not None:
            if kill:
                self._process.kill()
            else:
                self._process.terminate()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Let it stand still with every connection open, as a machine that is being moved does. Returns when it does:
        while the machine is busy, its threads may run on for some time after the signal."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, and remove all that it has."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        """What it has logged."""
        return Path(self.directory, "log").read_text(errors="replace")
