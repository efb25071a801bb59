"""What all systems on PostgreSQL have in common: databases that the harness made, and how the server is watched."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from benchmarks.gate import Gate
from benchmarks.systems.served import ServedSystem
from benchmarks.systems.system import Answer, needed

DURABLE = "synchronous_commit=on"

_WATCH = """
    DO $$
    DECLARE
        began timestamptz := clock_timestamp();
    BEGIN
        WHILE {unfinished} LOOP
            COMMIT;
            PERFORM pg_sleep(greatest(0.005, 0.015 * extract(epoch FROM clock_timestamp() - began)));
        END LOOP;
    END $$
"""
"""On the server, so that looking costs neither trips nor a client; a look is late by 1.5 % of the time at most."""


class PostgresSystem(ServedSystem):
    """A system whose jobs lie in a database of the harness's server."""

    unfinished: ClassVar[str] = ""
    """An SQL expression: does the store hold a job that waits or is not acknowledged?"""
    witness: ClassVar[str] = ""
    """A query for another such expression: does the job that comes last still wait? One probe of an index, whereas
    ``unfinished`` has to walk over all that is dead; so that is asked only when the witness is gone."""

    def __init__(self, name: str, setting: str) -> None:
        super().__init__(name, "postgres", setting)

    def connect(self, place: str) -> Any:
        import psycopg

        return psycopg.connect(self.url(place), autocommit=True)

    def versions(self, gate: Gate, place: str) -> Answer:
        """What exactly is measured, the server included."""
        with self.connect(place) as connection:
            [[server]] = connection.execute("SHOW server_version").fetchall()
        return super().versions(gate, place) | {"postgres": server}

    def watch(self, gate: Gate, place: str, goal: int) -> Answer:
        """The instant at which the server held nothing any more."""
        assert goal == 0
        with self.connect(place) as connection:
            needed(self.left(connection))
            look = _WATCH.format(unfinished=self.condition(connection))
            gate.ready()
            connection.execute(look)
            at = time.monotonic_ns()
            if self.left(connection):
                raise RuntimeError("the server still holds jobs: the drain was not over")
            return {"at": at}

    def condition(self, connection: Any) -> str:
        """What comes to the same as ``unfinished`` in a drain and costs less."""
        [[witness]] = connection.execute(self.witness).fetchall()
        return f"{witness} OR {self.unfinished}"

    def left(self, connection: Any) -> bool:
        [[found]] = connection.execute(f"SELECT {self.unfinished}").fetchall()
        return bool(found)

    def settle(self, place: str) -> None:
        """Nobody's plans depend on when autovacuum came by."""
        with self.connect(place) as connection:
            connection.execute("VACUUM ANALYZE")
