"""Valkey for the benchmark: a fresh server for every measurement, as it starts in a moment and keeps nothing behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.server import STORES, Kind, Server, ServerFailed, seconds_of, starting
from benchmarks.systems.valkey import at_rest

if TYPE_CHECKING:
    import redis
    from servers.valkey import Valkey

Aof = Literal["everysec", "always", "off"]
"""When what was written reaches the disk; ``off``: never."""

_QUIET = {"auto-aof-rewrite-percentage": "0"}
_KINDS: Mapping[Kind, Mapping[str, str]] = {"plain": {}, "counting": _QUIET, "large": _QUIET, "quiet": _QUIET}
_LINES = 25
_LOOK = 0.01
_PATIENCE = 60.0


def told(aof: Aof) -> str:
    """How it is set up."""
    durable = "appendonly no" if aof == "off" else f"appendonly yes, appendfsync {aof}"
    return f'{durable}, save "", else its own defaults; fresh for every measurement, on a core of its own'


class ValkeyServer(Server):
    """As many servers as there are measurements under way; database 0 is measured, database 1 warms up."""

    def __init__(self, kind: Kind, base: Path | None, core: int | None, aof: Aof = "everysec") -> None:
        durable = {"appendonly": "no"} if aof == "off" else {"appendonly": "yes", "appendfsync": aof}
        self._settings = durable | dict(_KINDS[kind])
        self._base = base
        self._core = core
        self._running: dict[int, Valkey] = {}

    @contextmanager
    def databases(self, folder: Path) -> Iterator[str]:
        from servers.valkey import Valkey

        with ExitStack() as stack:
            with starting("Valkey", self._base, self._core):
                valkey = Valkey(self._base, self._settings)
                stack.callback(valkey.close)
                valkey.start()
            for number, store in enumerate(STORES):
                (folder / f"{store}.url").write_text(valkey.url(number))
            pid = int(self.info(valkey.url(), "server")["process_id"])
            self._running[pid] = valkey
            stack.callback(self._running.pop, pid)
            yield valkey.url()

    def connect(self, database: str) -> redis.Redis:
        """A connection of the harness itself."""
        import redis

        return redis.Redis.from_url(database)

    def info(self, database: str, section: str) -> dict[str, Any]:
        """What the server says of itself."""
        with self.connect(database) as client:
            found: dict[str, Any] = client.info(section)
            return found

    def settle(self, database: str) -> None:
        with self.connect(database) as client:
            _wait(lambda: at_rest(client), "to end the rewriting of its log")

    def memory(self, database: str) -> int:
        """Bytes that the server has in use, once what was freed is gone and no client but this one is left. What it
        keeps of slow commands and of their statistics is thrown away: that comes and goes with the machine's load."""
        with self.connect(database) as client:
            _wait(lambda: not client.info("memory")["lazyfree_pending_objects"], "to free what was deleted")
            _wait(lambda: client.info("clients")["connected_clients"] == 1, "to be left by all clients")
            client.slowlog_reset()
            client.config_resetstat()
            return int(client.info("memory")["used_memory"])

    def clear(self, database: str) -> None:
        with self.connect(database) as client:
            client.config_resetstat()

    def workload(self, database: str, count: int) -> str:
        found = self.info(database, "commandstats")
        rows = sorted(found.items(), key=lambda row: -row[1]["usec"])[:_LINES]
        lines = [f"{'time':>8}  {'calls':>8}  command on the server, those inside scripts too   (µs/job, calls/job)"]
        for name, stat in rows:
            lines.append(f"{stat['usec'] / count:8.2f}  {stat['calls'] / count:8.4f}  {name.removeprefix('cmdstat_')}")
        return "\n".join(lines)

    def cpu(self) -> float:
        return sum(map(seconds_of, self._running))

    def close(self) -> None:
        for valkey in self._running.values():
            valkey.close()


def _wait(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _PATIENCE
    while not done():
        if time.monotonic() > end:
            raise ServerFailed(f"expected Valkey {what} within {_PATIENCE:g} s, but it did not")
        time.sleep(_LOOK)
