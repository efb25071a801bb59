"""The yardstick for bytes in the server's log: the wide table that jobs lived in before Headrace, reproduced."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from benchmarks.gate import Gate
from benchmarks.sql import connected, micros, read
from benchmarks.systems.load import Load
from benchmarks.systems.log import Log
from benchmarks.systems.postgres import DURABLE, PostgresSystem
from benchmarks.systems.system import Answer

_CHUNK = 100
_LOCK = UUID(int=1)


class LegacyPostgres(PostgresSystem):
    """INSERT, a claim by UPDATE, three UPDATEs to release, DELETE."""

    roles = frozenset({"journal"})
    distributions = ("psycopg",)

    def __init__(self, name: str) -> None:
        super().__init__(name, f"{DURABLE}; one wide table, five indexes, batches of {_CHUNK}")

    def journal(self, gate: Gate, place: str, count: int, load: str, history: bool) -> Answer:
        """Bytes of the log, by part, for a load; there is always a history until the rows are deleted."""
        connection, sql, jobs = connected(self.url(place), "legacy"), read("legacy"), Load(load)
        log = Log(connection)
        gate.ready()
        with log.part("insert"):
            for first in range(0, count, _CHUNK):
                _insert(connection, jobs, range(first, min(first + _CHUNK, count)))
        with log.part("work"):
            again: set[UUID] = set()
            while taken := connection.execute(sql["claim"], {"limit": _CHUNK, "lock": _LOCK}).fetchall():
                for job_id, *_ in taken:
                    with connection.transaction():
                        _release(connection, job_id, None if job_id in again else jobs.retried(_number(job_id)))
                    again.add(job_id)
        relations = log.relations()
        with log.part("delete"):
            connection.execute(sql["delete"])
        log.vacuum()
        return {"parts": log.parts, "payload": jobs.payload(count), "relations": relations}


def _insert(connection: Any, load: Load, numbers: range) -> None:
    cells = [load.sections(number) for number in numbers]
    values: dict[str, list[Any]] = {
        "ids": [UUID(int=micros() << 64 | number) for number in numbers],
        "teams": [number % 100 for number in numbers],
        "functions": [UUID(int=number % 1_000) for number in numbers],
        "parameters": [json.dumps(load.parameters(number)).encode() for number in numbers],
    }
    for name in ("vm_state", "metadata", "blob"):
        values[f"{name}s"] = [cell.get(name) for cell in cells]
    connection.execute(read("legacy")["insert"], values)


def _release(connection: Any, job_id: UUID, vm_state: bytes | None) -> None:
    sql, state = read("legacy"), "completed" if vm_state is None else "available"
    connection.execute(sql["settle"], {"id": job_id, "lock": _LOCK, "state": state})
    connection.execute(sql["patch"], {"id": job_id, "lock": _LOCK, "vm_state": vm_state})
    connection.execute(sql["release"], {"id": job_id, "lock": _LOCK})


def _number(job_id: UUID) -> int:
    return job_id.int & (1 << 64) - 1
