"""SQL over a vault and what is not in it yet, by DuckDB."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from headrace.errors import ConfigError, InvalidJob
from headrace.payloads.objects import Objects, for_each
from headrace.vault.catalog import Catalog
from headrace.vault.layout import PageFile
from headrace.vault.unarchived import Unarchived

if TYPE_CHECKING:
    import duckdb

Rows = list[dict[str, Any]]
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


async def query(objects: Objects, sql: str, parameters: Sequence[Any], ends: Ends) -> Rows:
    """The rows of one statement over the view ``jobs``: these files, and jobs that are not archived yet. Files of a
    bucket are fetched first."""
    with tempfile.TemporaryDirectory(prefix="headrace-vault-") as folder:
        paths = await _local(objects, ends.files, Path(folder))
        return await asyncio.to_thread(_run, sql, parameters, paths, ends)


async def _local(objects: Objects, files: Sequence[PageFile], folder: Path) -> list[str]:
    if objects.location.scheme == "file":
        return [str(Path(objects.location.prefix) / file.key) for file in files]
    catalog, paths = Catalog(objects), [folder / f"{number}.parquet" for number in range(len(files))]

    async def fetch(one: tuple[PageFile, Path]) -> None:
        file, path = one
        await asyncio.to_thread(path.write_bytes, await catalog.body(file))

    await for_each(zip(files, paths, strict=True), fetch)
    return [str(path) for path in paths]


async def query_confined(objects: Objects, sql: str, ends: Ends, most: int) -> Answer:
    """The first rows of one ``SELECT``. It sees the two views: no other file, no network and no setting, and it is cut
    off after a while. For people whom the process does not trust with its own rights."""
    with tempfile.TemporaryDirectory(prefix="headrace-vault-") as folder:
        paths = await _local(objects, ends.files, Path(folder))
        return await asyncio.to_thread(_run_confined, sql, paths, ends, most)


def _run(sql: str, parameters: Sequence[Any], paths: list[str], ends: Ends) -> Rows:
    with _connected(paths, ends) as connection:
        import duckdb

        try:
            found = connection.sql(sql, params=list(parameters))
            rows: Rows = [] if found is None else found.to_arrow_table().to_pylist()
            return rows
        except duckdb.Error as error:
            raise InvalidJob(f"query: {error}") from error


def _run_confined(sql: str, paths: list[str], ends: Ends, most: int) -> Answer:
    with _connected(paths, ends) as connection:
        import duckdb

        try:
            connection.execute(_CONFINED.format(paths=_quoted(paths)))
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


def _connected(paths: list[str], ends: Ends) -> duckdb.DuckDBPyConnection:
    """A connection that has the views. Each end is in them once: an end of the store may be in late files too."""
    try:
        import duckdb
    except ImportError as error:
        raise ConfigError(f"queries need duckdb ({error}); install: pip install 'headrace[vault]'") from error
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("hot", ends.hot.table)
    late = [path for path, file in zip(paths, ends.files, strict=True) if ends.hot.may_have(file)]
    hot = f"SELECT * FROM hot ANTI JOIN {_parquet(late)} USING (id, epoch)" if late else "SELECT * FROM hot"
    both = f"SELECT * FROM {_parquet(paths)} UNION ALL BY NAME {hot}" if paths else hot
    connection.execute(f"CREATE VIEW jobs AS {both}")
    connection.execute(_VIEWS)
    return connection


def _parquet(paths: list[str]) -> str:
    return f"read_parquet({_quoted(paths)}, union_by_name = true, hive_partitioning = false)"


def _quoted(paths: list[str]) -> str:
    return "[" + ", ".join("'" + path.replace("'", "''") + "'" for path in paths) + "]"
