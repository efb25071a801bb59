"""The child's end of the line to the harness: says ready, waits for go, hears stop."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Gate:
    """A closed line counts as stop, so no child outlives the harness."""

    def __init__(self) -> None:
        self.stopped = False
        self._callbacks: list[Callable[[], object]] = []
        self._before: dict[str, float] = {}

    def ready(self) -> None:
        """Set-up and warm-up are over; returns when the clock runs."""
        self.say({"ready": True})
        if sys.stdin.readline().strip() != "go":
            raise SystemExit("the harness is gone")
        threading.Thread(target=self._listen, name="gate", daemon=True).start()
        self._before = usage()

    def used(self) -> dict[str, float]:
        """What this process has used since go."""
        now = usage()
        return {name: now[name] - self._before.get(name, 0.0) for name in now}

    def on_stop(self, callback: Callable[[], object]) -> None:
        """Call back, from another thread, when the harness says stop."""
        self._callbacks.append(callback)
        if self.stopped:
            callback()

    def say(self, message: dict[str, Any]) -> None:
        """One line to the harness, whole: the system may take a part of it at a time, and Python's own standard output
        forgets the rest if it is not buffered."""
        line = memoryview(json.dumps(message).encode() + b"\n")
        while line:
            line = line[os.write(sys.stdout.fileno(), line) :]

    def _listen(self) -> None:
        sys.stdin.readline()
        self.stopped = True
        for callback in self._callbacks:
            callback()


def usage() -> dict[str, float]:
    """CPU seconds, bytes and calls written by this process so far; the latter only where the system counts them."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    found = {"cpu": used.ru_utime + used.ru_stime, "switches": float(used.ru_nvcsw + used.ru_nivcsw)}
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return found
    counts = dict(line.split(": ") for line in lines)
    return found | {"written": float(counts["wchar"]), "writes": float(counts["syscw"])}


def memory(field: str) -> int:
    """Bytes of this process's memory: ``VmRSS`` now, ``VmHWM`` at its peak."""
    try:
        lines = Path(f"/proc/{os.getpid()}/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024
    return next(int(line.split()[1]) * 1_024 for line in lines if line.startswith(field))
