"""Three documents come in, one is taken back, a worker runs, and SQL tells what became of them.

HEADRACE_URL=postgresql://localhost/archive python examples/documents/run.py
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psycopg
from archive import TABLES, URL, Revision, app, ingest

from headrace.errors import HeadraceError

HISTORY = (Path(__file__).parent / "history.sql").read_text("utf-8")

Connection = psycopg.Connection[tuple[object, ...]]


def take_in(connection: Connection) -> None:
    """What an upload does: it is quick, however long the extraction takes."""
    with connection.transaction():
        ingest(connection, Revision("minutes", 1, "2026-01-08: the board met\n2026-02-12: it met again\n"))
        ingest(connection, Revision("minutes", 1, "the same upload, sent twice"))
    with connection.transaction():
        ingest(connection, Revision("letter", 1, "the model is busy; 2026-03-01: we write"))
    with connection.transaction():
        ingest(connection, Revision("scan", 1, "   "))


def take_back(connection: Connection) -> None:
    """An upload that fails half-way leaves neither a revision nor a job."""
    try:
        with connection.transaction():
            ingest(connection, Revision("draft", 1, "2026-04-01: never happened"))
            raise RuntimeError("the upload broke off")
    except RuntimeError as error:
        print(f"  {error}: nothing of it is there\n")


def tell(connection: Connection) -> None:
    """The queries of history.sql, and their results."""
    for part in HISTORY.split("-- name: ")[1:]:
        name, question = part.split("\n", 1)
        print(f"  {name}")
        for row in connection.execute(question):
            print("    " + "  ".join(str(value) for value in row))


async def install() -> None:
    """Headrace's tables, in their own schema."""
    async with app:
        pass


async def work() -> None:
    """Run a worker until nothing is due."""
    async with app:
        await app.drain()


def main() -> None:
    """The whole example."""
    asyncio.run(install())
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute(TABLES)
        take_in(connection)
        take_back(connection)
        asyncio.run(work())
        tell(connection)


if __name__ == "__main__":
    try:
        main()
    except (HeadraceError, psycopg.Error) as error:
        said, *_ = str(error).splitlines()
        sys.exit(f"{said} (HEADRACE_URL names the database; README.md, beside this file, tells how to make one)")
