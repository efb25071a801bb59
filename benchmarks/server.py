"""A server that the harness runs: on a core of its own, with fresh databases for every measurement."""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Literal

from benchmarks.machine import on_core

Kind = Literal["plain", "counting", "quiet"]
"""``plain`` for everything that takes time; ``counting`` where all that is asked of it is counted; ``quiet`` where
bytes are, which its own housekeeping would blur."""

STORES = ("queue", "warm")
"""The databases of a measurement: the one that is measured, and one to warm up on."""


class ServerFailed(Exception):
    """A server did not start, or does not come to rest; the text says why."""


class Server(ABC):
    """What the harness needs of any of them."""

    @abstractmethod
    def databases(self, folder: Path) -> AbstractContextManager[str]:
        """Fresh databases, whose addresses lie in ``folder`` as ``queue.url`` and ``warm.url``; gone afterwards.
        Yields what names the first."""

    @abstractmethod
    def settle(self, database: str) -> None:
        """Wait until what a fill has left to be written is written, so that no measurement pays for it."""

    @abstractmethod
    def clear(self, database: str) -> None:
        """Count what is asked of it from zero."""

    @abstractmethod
    def workload(self, database: str, count: int) -> str:
        """What it did since then, for people, per job."""

    @abstractmethod
    def cpu(self) -> float:
        """CPU seconds that all its processes, those included that they have ended, have used so far."""

    @abstractmethod
    def close(self) -> None:
        """Stop it, and remove all that it has."""


@contextmanager
def starting(what: str, base: Path | None, core: int | None) -> Iterator[None]:
    """On its core. Raises ``ServerFailed``."""
    try:
        with on_core(core):
            yield
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        raise ServerFailed(f"{what} did not start in {base or 'the temporary directory'}: {error}") from error


def seconds_of(server: int) -> float:
    """CPU seconds of a process and of all that it has started."""
    return sum(_seconds(int(pid), server) for pid in os.listdir("/proc") if pid.isdigit())


def _seconds(pid: int, server: int) -> float:
    """What a process of the server has used; those that have ended are on the account of the one that started them."""
    try:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    parent, used, of_ended = int(fields[1]), fields[11:13], fields[13:15]
    if server not in (pid, parent):
        return 0.0
    return sum(map(int, used + of_ended if pid == server else used)) / os.sysconf("SC_CLK_TCK")
