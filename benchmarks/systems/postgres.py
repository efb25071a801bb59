"""What all systems on PostgreSQL have in common: databases that the harness made, and how the server is watched."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.gate import Gate
from benchmarks.systems.system import Answer, System, needed

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


class PostgresSystem(System):
    """A system whose jobs lie in a database of the harness's server."""

    served = True
    unfinished: ClassVar[str] = ""
    """An SQL expression: does the store hold a job that waits or is not acknowledged?"""
    witness: ClassVar[str] = ""
    """A query for another such expression: does the job that comes last still wait? One probe of an index, whereas
    ``unfinished`` has to walk over all that is dead; so that is asked only when the witness is gone."""

    def __init__(self, name: str, setting: str) -> None:
        super().__init__(name, "postgres", setting)

    def url(self, place: str, name: str = "queue") -> str:
        """The address of a database that belongs to this measurement."""
        return Path(place, f"{name}.url").read_text()

    def connect(self, place: str) -> Any:
        """A plain connection to the measured database."""
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
        """Whether the server holds a job that is not over."""
        [[found]] = connection.execute(f"SELECT {self.unfinished}").fetchall()
        return bool(found)

    def settle(self, place: str) -> None:
        """After a fill, so that nobody's plans depend on when autovacuum came by."""
        with self.connect(place) as connection:
            connection.execute("VACUUM ANALYZE")
