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

Kind = Literal["plain", "counting", "large", "quiet"]
"""``plain`` for everything that takes time; ``counting`` where all that is asked of it is counted; ``large`` is the
same for thousands of connections and millions of rows at once; ``quiet`` where bytes are, which its own housekeeping
would blur."""

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
    while True:
        ended = _seconds_of_ended(server)
        total = ended + sum(_seconds(int(pid), server) for pid in os.listdir("/proc") if pid.isdigit())
        if _seconds_of_ended(server) == ended:
            return total
        # One has ended meanwhile: it may have been counted twice, or not at all.


def _seconds_of_ended(server: int) -> float:
    """What those have used that the server has started and seen the end of."""
    return _summed(_fields(server)[13:15])


def _seconds(pid: int, server: int) -> float:
    """What a process has used itself, if it is the server or was started by it."""
    fields = _fields(pid)
    return _summed(fields[11:13]) if server in (pid, int(fields[1] if fields else 0)) else 0.0


def _fields(pid: int) -> list[str]:
    """What the system tells of a process, from its state on; nothing, when it is gone."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _summed(ticks: list[str]) -> float:
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
