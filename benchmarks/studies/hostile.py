"""No statement, script or transaction takes longer than 50 ms, whatever one call asks for: full batches of the rows
that cost most, and calls beside very many jobs, tenants, groups and rules, on every store.

``python -m benchmarks.studies.hostile`` takes half an hour; ``--quick`` ten minutes; ``--case "insert, k"``
only what begins so. A call may be cut into several steps; the longest of them counts. By the clock it is too long
where others use the machine, so its share of the CPU time of the whole call counts if that is less. Each call is made
several times, and the fastest counts.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import apsw

from benchmarks.fleet import Servers
from benchmarks.machine import facts
from benchmarks.postgres_server import PostgresServer
from benchmarks.results import HOME, aligned, shown
from benchmarks.studies import hostile_beside, hostile_cases
from benchmarks.studies.hostile_cases import Case
from benchmarks.studies.stores import STORES, Fresh, fresh, keep
from benchmarks.valkey_server import ValkeyServer
from headrace import App

OUTPUT = HOME / "hostile.jsonl"
CASES = hostile_cases.CASES | hostile_beside.CASES
BOUND = 50.0
"""Milliseconds."""
TIMES = 5
_QUICK = 2
_CALLS = """
    SELECT coalesce(max(s.max_exec_time), 0), coalesce(sum(s.total_exec_time), 0), coalesce(sum(s.calls), 0)
    FROM pg_stat_statements AS s JOIN pg_database AS d ON d.oid = s.dbid WHERE d.datname = %(name)s AND s.toplevel
"""
_RESET = "SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = %(name)s), 0)"


@dataclass(frozen=True)
class Cell:
    """One kind of call. Milliseconds."""

    case: str
    step: float
    """The longest, by the clock, or its share of the CPU time of the call, if that is less."""
    clock: float
    """The longest, by the clock."""
    cpu: float
    """Of the call, in the store."""
    steps: float

    @property
    def short(self) -> bool:
        return self.step <= BOUND


class _Meter(ABC):
    """What was done since ``clear``: the longest step in milliseconds, all of them together, and how many."""

    @abstractmethod
    def clear(self) -> None: ...

    @abstractmethod
    def read(self) -> tuple[float, float, float]: ...

    @abstractmethod
    def cpu(self) -> dict[int, float]:
        """Milliseconds of CPU that each process of the store has used so far."""

    @abstractmethod
    def close(self) -> None: ...


def _used(pids: Iterable[int]) -> dict[int, float]:
    """Milliseconds of CPU of these processes, to the nanosecond."""
    found = {}
    for pid in pids:
        with suppress(OSError):
            found[pid] = int(Path("/proc", str(pid), "schedstat").read_text().split()[0]) / 1e6
    return found


class _Statements(_Meter):
    def __init__(self, server: PostgresServer, database: str) -> None:
        self._connection = server.connect()
        self._name = {"name": database}

    def cpu(self) -> dict[int, float]:
        found = self._connection.execute("SELECT pid FROM pg_stat_activity WHERE datname = %(name)s", self._name)
        return _used(pid for [pid] in found)

    def clear(self) -> None:
        self._connection.execute(_RESET, self._name)

    def read(self) -> tuple[float, float, float]:
        row: Any = self._connection.execute(_CALLS, self._name).fetchone()
        return float(row[0]), float(row[1]), float(row[2])

    def close(self) -> None:
        self._connection.close()


class _Scripts(_Meter):
    """Of Valkey: those of a millisecond and more. Commands of scripts are listed too, up to 10,000."""

    def __init__(self, server: ValkeyServer, database: str) -> None:
        self._client = server.connect(database)
        self._client.config_set("slowlog-log-slower-than", 1_000)
        self._client.config_set("slowlog-max-len", 10_000)

    def cpu(self) -> dict[int, float]:
        used = self._client.info("cpu")
        return {0: (float(used["used_cpu_user_main_thread"]) + float(used["used_cpu_sys_main_thread"])) * 1e3}

    def clear(self) -> None:
        self._client.slowlog_reset()

    def read(self) -> tuple[float, float, float]:
        listed = self._client.slowlog_get(10_000)
        found = [entry["duration"] / 1e3 for entry in listed if entry["command"].startswith(b"EVALSHA")]
        return max(found, default=0.0), sum(found), float(len(found))

    def close(self) -> None:
        self._client.close()


class _Commits(_Meter):
    """Of SQLite: from a BEGIN to its COMMIT, in CPU time of the thread that writes; or one statement that reads."""

    def __init__(self) -> None:
        self._found: list[float] = []
        self._begun: dict[int, float] = {}
        apsw.connection_hooks.append(self._attach)

    def _attach(self, connection: apsw.Connection) -> None:
        def began(told: dict[str, Any]) -> None:
            if told["code"] == apsw.SQLITE_TRACE_STMT:
                self._begun.setdefault(id(connection), time.thread_time())
            elif connection.get_autocommit() or told["sql"].startswith("COMMIT"):
                self._found.append((time.thread_time() - self._begun.pop(id(connection), time.thread_time())) * 1e3)

        connection.trace_v2(apsw.SQLITE_TRACE_STMT | apsw.SQLITE_TRACE_PROFILE, began, id=self)

    def cpu(self) -> dict[int, float]:
        return {0: time.process_time() * 1e3}

    def clear(self) -> None:
        self._found.clear()

    def read(self) -> tuple[float, float, float]:
        longest = max(self._found, default=0.0)
        return longest, longest, float(len(self._found))

    def close(self) -> None:
        apsw.connection_hooks.remove(self._attach)


@contextmanager
def _metered(at: Fresh) -> Iterator[_Meter]:
    meter: _Meter
    if isinstance(at.server, PostgresServer):
        meter = _Statements(at.server, at.database)
    elif isinstance(at.server, ValkeyServer):
        meter = _Scripts(at.server, at.database)
    else:
        meter = _Commits()
    try:
        yield meter
    finally:
        meter.close()


async def _measure(case: Case, url: str, meter: _Meter, times: int) -> list[Cell]:
    """The fastest of each kind of call in the case."""
    found: dict[object, list[tuple[float, float, float, float]]] = {}
    async with App(url) as app:
        calls = case(await app.client.backend())
        for number in range(2 * times + 2):
            call = await anext(calls)
            meter.clear()
            before = meter.cpu()
            await call()
            cpu = sum(used - before.get(pid, 0.0) for pid, used in meter.cpu().items())
            clock, total, steps = meter.read()
            if number > 1:  # the first makes connections and plans
                share = clock / total if total else 1.0
                found.setdefault(_code(call), []).append((min(clock, cpu * share), clock, cpu, steps))
    return [Cell("", *min(several)) for several in found.values()]


def _code(call: Any) -> object:
    """The same for calls that are made at one place."""
    return call.__code__


def some(names: Sequence[str]) -> dict[str, Case]:
    """Those whose name begins so; without names, all."""
    return {name: case for name, case in CASES.items() if name.startswith(tuple(names or ("",)))}


def study(store: str, servers: Servers, name: str, times: int, place: Path | None = None) -> Cell:
    """One case on one store: the slowest kind of call in it."""
    with fresh(store, servers, place, "counting") as at, _metered(at) as meter:
        found = asyncio.run(_measure(CASES[name], at.url, meter, times))
    return replace(max(found, key=lambda cell: cell.step), case=name)


def table(cells: Sequence[Cell]) -> str:
    """What people read."""
    lines: list[Sequence[str]] = [("call", "longest step, ms", "by the clock", "CPU of the call", "steps", "")]
    for cell in cells:
        figures = (shown(cell.step), shown(cell.clock), shown(cell.cpu), f"{cell.steps:.0f}")
        lines.append((cell.case, *figures, "" if cell.short else "TOO LONG"))
    return "\n".join(aligned(lines))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.hostile", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="each call twice")
    parser.add_argument("--store", choices=STORES, action="append", help="may be repeated; default: all")
    parser.add_argument("--case", action="append", help="only what begins so; may be repeated")
    parser.add_argument("--place", type=Path, help="where the stores are")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    short = True
    for store in given.store or STORES:
        with Servers(given.place, None) as servers:
            times = _QUICK if given.quick else TIMES
            cells = []
            for name in some(given.case or ()):
                cells.append(study(store, servers, name, times, given.place))
                print(f"{store}: {name}: {shown(cells[-1].step)} ms", file=sys.stderr, flush=True)
        print(f"{store}\n{table(cells)}\n", flush=True)
        short = short and all(cell.short for cell in cells)
        found = [{"kind": f"hostile, {cell.case}", **asdict(cell)} for cell in cells]
        keep(given.output, store, facts(given.place or Path(tempfile.gettempdir())), found)
    print("nothing takes too long" if short else "something takes too long")
    return 0 if short else 1


if __name__ == "__main__":
    sys.exit(main())
