"""The tightest loop over psycopg that makes the same writes durable as Headrace does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from benchmarks.gate import Gate
from benchmarks.sql import connected, micros, read
from benchmarks.systems.postgres import DURABLE, PostgresSystem
from benchmarks.systems.system import WARM, Answer, job

_BATCH = 500


class BarePostgres(PostgresSystem):
    """Batches as arrays and by COPY: no jobs are run, nothing is decoded."""

    roles = frozenset({"enqueue", "bulk", "fill", "work", "watch"})
    distributions = ("psycopg",)
    unfinished = "EXISTS (SELECT 1 FROM ready) OR EXISTS (SELECT 1 FROM leased)"
    witness = "SELECT format('EXISTS (SELECT 1 FROM ready WHERE id = %L)', id) FROM ready ORDER BY id DESC LIMIT 1"

    def __init__(self, name: str) -> None:
        super().__init__(name, f"{DURABLE}; the tables that Headrace writes, COPY for many, turns of {_BATCH}")

    def enqueue(self, gate: Gate, place: str, count: int) -> Answer:
        """One statement and one commit per job."""
        connection, text, insert = self._open(place), job().encode(), read("bare")["insert"]

        def put(number: int) -> None:
            connection.execute(insert, {"id": UUID(int=number), "now": micros(), "parameters": text})

        for number in range(WARM):
            put(number)
        gate.ready()
        start = time.perf_counter()
        for number in range(WARM, WARM + count):
            put(number)
        return {"seconds": time.perf_counter() - start, **gate.used()}

    def bulk(self, gate: Gate, place: str, count: int) -> Answer:
        """Many jobs by COPY, in one transaction."""
        connection = self._open(place)
        _copy(connection, WARM)
        gate.ready()
        start = time.perf_counter()
        _copy(connection, count)
        return {"seconds": time.perf_counter() - start, **gate.used()}

    def fill(self, gate: Gate, place: str, count: int) -> Answer:
        """As many waiting jobs as asked for."""
        connection = self._open(place)
        gate.ready()
        _copy(connection, count)
        self.settle(place)
        return {}

    def work(self, gate: Gate, place: str) -> Answer:
        """Take and end jobs in turns until told to stop."""
        warm = self._open(place, "warm")
        _copy(warm, WARM)
        _turn(warm, _turn(warm, []))
        connection = self._open(place)
        gate.ready()
        done: list[UUID] = []
        while not gate.stopped:
            done = _turn(connection, done)
            if not done:
                time.sleep(0.05)
        return gate.used()

    def _open(self, place: str, name: str = "queue") -> Any:
        return connected(self.url(place, name), "bare")


def _copy(connection: Any, count: int) -> None:
    text, now, sql = job().encode(), micros(), read("bare")
    ids = [UUID(int=now << 64 | number) for number in range(count)]
    with connection.transaction(), connection.cursor() as cursor:
        with cursor.copy(sql["copy_jobs"]) as copy:
            copy.set_types(["uuid", "int8", "text", "text", "bytea"])
            for job_id in ids:
                copy.write_row((job_id, now, "noop", "", text))
        with cursor.copy(sql["copy_ready"]) as copy:
            copy.set_types(["int4", "int2", "int8", "uuid", "int4", "int4", "int4", "int4"])
            for job_id in ids:
                copy.write_row((1, 0, now, job_id, 0, 0, 0, 200))
        cursor.execute(sql["counted"], {"count": count})


def _turn(connection: Any, done: Sequence[UUID]) -> list[UUID]:
    turn = read("bare")["turn"].format(batch=_BATCH)
    rows = connection.execute(turn, {"done": list(done), "now": micros()}, binary=True).fetchall()
    return [job_id for job_id, _ in rows]
