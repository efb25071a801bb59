"""The machine that measures: what it is, which cores are ours, and who else keeps it busy."""

from __future__ import annotations

import os
import platform
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


def cores() -> list[int]:
    """The cores that this process may use; empty where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@dataclass(frozen=True)
class Cores:
    """Who runs where: whoever is measured has the last core, the other side of the measurement the first."""

    measured: int | None
    other: int | None

    @classmethod
    def pick(cls) -> Cores:
        """Two cores if there are two, else none are pinned."""
        found = cores()
        return cls(found[-1], found[0]) if len(found) > 1 else cls(None, None)

    def others(self, number: int) -> list[int | None]:
        """Cores for so many processes that leave ``other`` alone; they share when there are not enough."""
        if self.measured is None:
            return [None] * number
        free = [core for core in reversed(cores()) if core != self.other]
        return [free[place % len(free)] for place in range(number)]


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Processes that are started meanwhile stay on that core, and so do all that they start."""
    before = cores()
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        if core is not None:
            os.sched_setaffinity(0, before)


def facts(place: Path) -> dict[str, object]:
    """What a reader of the figures needs to know of the machine."""
    return {
        "cpu": _cpu(),
        "cores": len(cores()) or os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "filesystem": _filesystem(place),
        "fdatasync_per_second": round(syncs_per_second(place)),
    }


@dataclass(frozen=True)
class Load:
    """CPU seconds used so far on the whole machine and by us, and how long that took."""

    busy: float
    stolen: float
    own: float
    at: float

    @classmethod
    def now(cls, servers: float = 0.0) -> Load:
        """Ended children count as ours, running ones as foreign: take it when they have been waited for. What our
        servers, which go on running, have used must be told."""
        busy, stolen = _machine_seconds()
        mine, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        own = mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime + servers
        return cls(busy, stolen, own, time.monotonic())

    def foreign_since(self, before: Load) -> float:
        """Cores that others, the hypervisor's other guests included, kept busy meanwhile."""
        elapsed = max(self.at - before.at, 1e-9)
        used = self.busy - before.busy - (self.own - before.own) + self.stolen - before.stolen
        return max(0.0, used / elapsed)


def _machine_seconds() -> tuple[float, float]:
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0, 0.0
    user, nice, system, _, _, irq, softirq, steal, *_ = (int(field) for field in fields)
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / tick, steal / tick


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _filesystem(place: Path) -> str:
    """On a memory file system durability costs nothing, and every figure that depends on it is void."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    real = str(place.resolve())
    over = [(point, kind) for point, kind in mounts if real == point or real.startswith(point.rstrip("/") + "/")]
    return max(over, key=lambda mount: len(mount[0]))[1] if over else "unknown"


def syncs_per_second(place: Path, seconds: float = 0.2) -> float:
    """How many small writes the disk makes durable in a second, one after the other."""
    sync = getattr(os, "fdatasync", os.fsync)
    handle, path = tempfile.mkstemp(prefix="sync-probe-", dir=place)
    try:
        count, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            os.pwrite(handle, b"x" * 4_096, 0)
            sync(handle)
            count += 1
        return count / elapsed
    finally:
        os.close(handle)
        os.unlink(path)
