"""What is measured: a metric plays a system through its roles and comes back with figures."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.fleet import Servers
from benchmarks.machine import Cores
from benchmarks.postgres_server import PostgresServer
from benchmarks.server import Kind, Server
from benchmarks.sizes import Sizes
from benchmarks.stage import Stage
from benchmarks.systems.system import System
from benchmarks.valkey_server import ValkeyServer
from benchmarks.venvs import python_for


@dataclass(frozen=True)
class Figure:
    """A number with a name, and which way is better."""

    name: str
    unit: str
    more_is_better: bool = False


@dataclass(frozen=True)
class Bench:
    """What a metric works with."""

    sizes: Sizes
    cores: Cores
    base: Path | None = None
    servers: Servers | None = None
    """For systems whose store is a server."""

    @property
    def place(self) -> Path:
        """Where the stores are made."""
        return self.base or Path(tempfile.gettempdir())

    def stage(self, system: System, kind: Kind = "plain") -> Stage:
        """Children, a directory and, if the system's store is a server, fresh databases for one measurement."""
        return Stage(self.base, self.sizes.limit, self.server(system, kind) if system.served else None)

    def server(self, system: System, kind: Kind = "plain") -> Server:
        """The server that is the system's store."""
        return self._servers.of(system.backend, kind)

    def postgres(self, kind: Kind = "plain") -> PostgresServer:
        """For metrics that know no other."""
        return self._servers.postgres(kind)

    def valkey(self, kind: Kind = "plain") -> ValkeyServer:
        """For metrics that know no other."""
        return self._servers.valkey(kind)

    @property
    def _servers(self) -> Servers:
        if self.servers is None:
            raise ValueError("expected servers for a system whose store is one, got none")
        return self.servers

    def beside(self, system: System) -> int | None:
        """The core of a process that takes part but is not measured. A server has that core for itself."""
        return self.cores.measured if system.served else self.cores.other

    def python(self, system: System) -> str:
        """The interpreter that the system runs in. Brackets in its path would mislead libraries that look for files."""
        name = system.packages[0] if system.packages else system.name
        return python_for(name.replace("[", "-").replace("]", ""), system.packages)


class Metric:
    """One way of measuring. ``run`` does it once; the harness repeats it."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]]
    """The roles that a system must be able to play."""
    figures: ClassVar[tuple[Figure, ...]]
    most_repeats: ClassVar[int] = 1_000
    """Counts do not change from run to run: once is enough."""

    def applies(self, system: System) -> bool:
        """Whether the system can be measured so."""
        return self.needs <= system.roles

    def skip(self, sizes: Sizes) -> bool:
        """Whether these sizes leave the metric out."""
        return False

    def how(self, bench: Bench) -> str:
        """What a reader must know beside the system's own setting."""
        raise NotImplementedError

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        """Figures by name."""
        raise NotImplementedError


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def latencies(nanoseconds: Sequence[int], name: str) -> dict[str, float]:
    """Median and 99th percentile in milliseconds; the first tenth warms up."""
    if not nanoseconds:
        raise ValueError("no job arrived")
    kept = [value / 1e6 for value in nanoseconds[len(nanoseconds) // 10 :]]
    return {f"{name}_p50": statistics.median(kept), f"{name}_p99": percentile(kept, 0.99)}
