"""Tables of PostgreSQL that somebody locks, as a migration of another program may."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

_TRIES = 100


async def lock(connection: psycopg.AsyncConnection[Any], *tables: str) -> None:
    """Lock them until the transaction ends. A worker that has one of them may want another: then again."""
    named = sql.SQL(", ").join(sql.Identifier("headrace", table) for table in tables)
    for _ in range(_TRIES):
        try:
            await connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(named))
        except psycopg.errors.DeadlockDetected:
            await connection.rollback()
        else:
            return
    raise TimeoutError(f"{_TRIES} times, somebody had one of {tables} and wanted another")
