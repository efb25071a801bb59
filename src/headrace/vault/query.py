"""SQL over a vault and what is not in it yet, by DuckDB."""

from __future__ import annotations

import asyncio
import re
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from headrace.errors import ConfigError, InvalidJob
from headrace.payloads.objects import Objects, Range, for_each
from headrace.vault.layout import JOBS, PageFile
from headrace.vault.row_catalog import RowFile
from headrace.vault.unarchived import Unarchived

if TYPE_CHECKING:
    import duckdb

Rows = list[dict[str, Any]]
Paths = Mapping[str, Sequence[str]]
"""By table."""
_PATTERN = re.compile(r"[*?\[]")
"""Of a path that DuckDB would take for a pattern."""
_VIEWS = """
CREATE VIEW attempts AS SELECT id, epoch, queue, task, tenant, unnest(attempts, recursive := true) FROM jobs
"""


_CONFINED = """
SET allowed_paths = {paths};
SET enable_external_access = false;
SET memory_limit = '512MB';
SET max_temp_directory_size = '0KB';
SET threads = 2;
SET python_enable_replacements = false;
SET lock_configuration = true;
"""
PATIENCE = 20.0
"""Seconds that a confined statement may take."""


class Answer(Struct, frozen=True):
    """The first rows of an answer."""

    columns: list[str]
    rows: list[list[Any]]
    more: bool = False
    """Whether there are others."""


class Ends(Struct, frozen=True):
    """What the views are made of."""

    files: Sequence[PageFile]
    hot: Unarchived
    rows: Mapping[str, Sequence[RowFile]] = {}
    """Files of other tables, by name."""


async def query(objects: Objects, sql: str, parameters: Sequence[Any], ends: Ends) -> Rows:
    """The rows of one statement over the view ``jobs``: these files, and jobs that are not archived yet; and over views
    of other tables. Files of a bucket are fetched first."""
    with tempfile.TemporaryDirectory(prefix="headrace-vault-") as folder:
        paths = await _local(objects, ends, Path(folder))
        return await asyncio.to_thread(_run, sql, parameters, paths, ends)


async def _local(objects: Objects, ends: Ends, folder: Path) -> Paths:
    """Where the files of each table lie on this machine."""
    todo: list[tuple[PageFile | RowFile, Path]] = []

    def place(file: PageFile | RowFile) -> str:
        if objects.location.scheme == "file" and not _PATTERN.search(file.key):
            return str(Path(objects.location.prefix) / file.key)
        todo.append((file, folder / f"{len(todo)}.parquet"))
        return str(todo[-1][1])

    async def fetch(one: tuple[PageFile | RowFile, Path]) -> None:
        file, path = one
        [body] = await objects.read(file.key, [Range(0, file.size)])
        await asyncio.to_thread(path.write_bytes, body)

    paths = {table: [place(file) for file in files] for table, files in ({JOBS: ends.files} | {**ends.rows}).items()}
    await for_each(todo, fetch)
    return paths


async def query_confined(objects: Objects, sql: str, ends: Ends, most: int) -> Answer:
    """The first rows of one ``SELECT``. It sees the views: no other file, no network and no setting, and it is cut
    off after a while. For people whom the process does not trust with its own rights."""
    with tempfile.TemporaryDirectory(prefix="headrace-vault-") as folder:
        paths = await _local(objects, ends, Path(folder))
        return await asyncio.to_thread(_run_confined, sql, paths, ends, most)


def _run(sql: str, parameters: Sequence[Any], paths: Paths, ends: Ends) -> Rows:
    with _connected(paths, ends) as connection:
        import duckdb

        try:
            found = connection.sql(sql, params=list(parameters))
            rows: Rows = [] if found is None else found.to_arrow_table().to_pylist()
            return rows
        except duckdb.Error as error:
            raise InvalidJob(f"query: {error}") from error


def _run_confined(sql: str, paths: Paths, ends: Ends, most: int) -> Answer:
    with _connected(paths, ends) as connection:
        import duckdb

        try:
            connection.execute(_CONFINED.format(paths=_quoted([one for of in paths.values() for one in of])))
        except duckdb.Error as error:
            raise ConfigError(f"this duckdb cannot be confined ({error}); install duckdb 1.2 or newer") from error
        limit = threading.Timer(PATIENCE, connection.interrupt)
        limit.start()
        try:
            statements = connection.extract_statements(sql)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise InvalidJob("query: expected one SELECT")
            connection.execute(statements[0])
            columns = [one[0] for one in connection.description or ()]
            rows = connection.fetchmany(most + 1)
        except duckdb.InterruptException:
            raise InvalidJob(f"query: expected an answer within {PATIENCE:g} s; ask for less") from None
        except duckdb.Error as error:
            raise InvalidJob(f"query: {error}") from error
        finally:
            limit.cancel()
    return Answer(columns, [list(row) for row in rows[:most]], len(rows) > most)


def _connected(paths: Paths, ends: Ends) -> duckdb.DuckDBPyConnection:
    """A connection that has the views. Each end is in them once: an end of the store may be in late files too."""
    try:
        import duckdb
    except ImportError as error:
        raise ConfigError(f"queries need duckdb ({error}); install: pip install 'headrace[vault]'") from error
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("headrace_hot", ends.hot.table)
    late = [path for path, file in zip(paths[JOBS], ends.files, strict=True) if ends.hot.may_have(file)]
    hot = "SELECT * FROM headrace_hot" + (f" ANTI JOIN {_parquet(late)} USING (id, epoch)" if late else "")
    both = f"SELECT * FROM {_parquet(paths[JOBS])} UNION ALL BY NAME {hot}" if paths[JOBS] else hot
    connection.execute(f"CREATE VIEW jobs AS {both}")
    connection.execute(_VIEWS)
    for table, of in paths.items():
        if table != JOBS and of:
            name = table.replace('"', '""')
            connection.execute(f'CREATE OR REPLACE VIEW "{name}" AS SELECT * FROM {_parquet(of)}')
    return connection


def _parquet(paths: Sequence[str]) -> str:
    return f"read_parquet({_quoted(paths)}, union_by_name = true, hive_partitioning = false)"


def _quoted(paths: Sequence[str]) -> str:
    return "[" + ", ".join("'" + path.replace("'", "''") + "'" for path in paths) + "]"
