"""How a database becomes a store, and how far it has come."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, NamedTuple

from psycopg import AsyncConnection, sql

_LOCK = int.from_bytes(b"Headrace")
"""Of those who migrate, one at a time."""


class Migration(NamedTuple):
    """One step; steps only ever add."""

    version: int
    name: str
    script: str


def migrations() -> list[Migration]:
    """All steps, in order."""
    entries = sorted(files(__package__).joinpath("migrations").iterdir(), key=lambda entry: entry.name)
    scripts = [entry for entry in entries if entry.name.endswith(".sql")]
    return [
        Migration(int(entry.name[:4]), entry.name.removesuffix(".sql"), entry.read_text("utf-8")) for entry in scripts
    ]


async def version(connection: AsyncConnection[Any], schema: str) -> int | None:
    """The version of the store in this schema; None if there is none."""
    cursor = await connection.execute(
        "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'migrations'", (schema,)
    )
    if await cursor.fetchone() is None:
        return None
    query = sql.SQL("SELECT coalesce(max(version), 0) FROM {}.migrations").format(sql.Identifier(schema))
    [[found]] = await (await connection.execute(query)).fetchall()
    return int(found)


async def migrate(connection: AsyncConnection[Any], schema: str, *, lock_timeout: str = "5s") -> list[Migration]:
    """Apply what is missing, each step in a transaction of its own; which were applied. A store of a newer version is
    left as it is: steps only add, so it serves this one too."""
    name = sql.Identifier(schema)
    if (await version(connection, schema) or 0) >= migrations()[-1].version:
        return []
    applied: list[Migration] = []
    await connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
    try:
        found = await version(connection, schema)
        if found is None:
            async with connection.transaction():
                await connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
                await connection.execute(
                    sql.SQL(
                        "CREATE TABLE {}.migrations (version integer PRIMARY KEY, name text NOT NULL,"
                        " applied_at timestamptz NOT NULL DEFAULT now())"
                    ).format(name)
                )
            found = 0
        for step in migrations():
            if step.version <= found:
                continue
            async with connection.transaction():
                await connection.execute("SELECT set_config('lock_timeout', %s, true)", (lock_timeout,))
                await connection.execute(sql.SQL("SET LOCAL search_path = {}").format(name))
                await connection.execute(step.script.encode())
                await connection.execute(
                    "INSERT INTO migrations (version, name) VALUES (%s, %s)", (step.version, step.name)
                )
            applied.append(step)
    finally:
        await connection.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))
    return applied
