"""A database file as a Headrace store: whose it is, how far it has come, and how it keeps its promises."""

from __future__ import annotations

import os
import re

import apsw

from headrace.backends.sqlite import files
from headrace.backends.sqlite.statements import migrations
from headrace.backends.sqlite.translate import read_only, translate
from headrace.errors import ConfigError, SchemaMismatch, Unavailable

APPLICATION_ID = int.from_bytes(b"Hdrc", "big")
BUSY_TIMEOUT = 30_000
"""Milliseconds to wait for locks that others hold past the latch."""
CHECKPOINT_PAGES = 1_000
"""The write-ahead log is copied into the file when it has this many pages: about 4 MB, which stay in the page cache."""
_WAL_KEPT = 16 * 1024 * 1024
_CACHE_KIB = 16 * 1024


def wal_is_safe(version: str) -> bool:
    """Whether the write-ahead log of this SQLite version may be used by several connections.

    SQLite 3.7.0 to 3.51.2 can corrupt a database when a checkpoint and a write meet at the wrong moment (the
    "WAL-reset bug"); 3.50.7 and 3.44.6 have the correction too.

    >>> [wal_is_safe(v) for v in ("3.51.3", "3.51.2", "3.50.7", "3.50.6", "3.44.6", "3.54.1")]
    [True, False, True, False, True, True]
    """
    major, minor, patch = (int(part) for part in [*re.findall(r"\d+", version), "0", "0"][:3])
    if (major, minor) == (3, 50):
        return patch >= 7
    if (major, minor) == (3, 44):
        return patch >= 6
    return (major, minor, patch) >= (3, 51, 3)


def connect(path: str) -> apsw.Connection:
    """A connection to a file that is a store of ours, or empty; nothing has been written yet."""
    files.make_database(path)
    connection = _open(path, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
    try:
        _identify(connection, path)
    except BaseException as error:
        system_errno = connection.system_errno
        connection.close(True)
        if isinstance(error, apsw.Error):
            raise translate(error, path, system_errno) from error
        raise
    return connection


def prepare(connection: apsw.Connection, path: str, *, wal: bool, durability: str) -> None:
    """Make the store what this version of Headrace expects; the caller holds the latch."""
    try:
        version = _identify(connection, path)
        _set_up(connection, path, wal=wal, durability=durability)
        _migrate(connection, version)
    except apsw.Error as error:
        raise translate(error, path, connection.system_errno) from error


def connect_reader(path: str) -> apsw.Connection:
    """A connection to read through, to a store that ``connect`` has opened."""
    connection = _open(path, apsw.SQLITE_OPEN_READWRITE)
    connection.pragma("query_only", True)
    connection.pragma("cache_size", -_CACHE_KIB)
    return connection


def _open(path: str, flags: int) -> apsw.Connection:
    if not hasattr(apsw, "carray") or "ENABLE_CARRAY" not in apsw.compile_options:
        raise ConfigError(
            "this build of apsw lacks SQLite's CARRAY extension: install the apsw wheel from PyPI (3.51.3.0 or newer)"
        )
    try:
        connection = apsw.Connection(path, flags=flags | apsw.SQLITE_OPEN_NOFOLLOW)
    except apsw.Error as error:
        directory = os.path.dirname(path)
        if not os.path.isdir(directory):
            raise Unavailable(f"there is no directory {directory} to keep {path} in: create it") from error
        raise translate(error, path) from error
    connection.set_busy_timeout(BUSY_TIMEOUT)
    # One plan for each statement: else SQLite looks for another whenever other values are bound, which takes longer
    # than most statements do.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return connection


def _identify(connection: apsw.Connection, path: str) -> int:
    """The schema version of a store of ours; 0 for an empty file."""
    if connection.readonly("main"):
        raise read_only(path)
    connection.execute("BEGIN")  # one snapshot: another process may be creating the store just now
    made_by = connection.pragma("application_id")
    version: int = connection.pragma("user_version")
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
    connection.execute("COMMIT")
    if made_by == 0 and tables == 0:
        return 0
    if made_by != APPLICATION_ID:
        raise SchemaMismatch(
            f"{path} is a SQLite database of another program ({tables} tables, application_id {made_by}): expected a "
            f"Headrace store or no file at all. Give Headrace a file of its own."
        )
    newest = len(migrations())
    if version > newest:
        raise SchemaMismatch(
            f"{path} has schema version {version}, made by a newer Headrace; this one knows versions up to {newest}. "
            f"Upgrade Headrace here."
        )
    return version


def _set_up(connection: apsw.Connection, path: str, *, wal: bool, durability: str) -> None:
    wished = "wal" if wal else "truncate"
    mode = connection.pragma("journal_mode", wished)
    if mode != wished:
        raise ConfigError(
            f"{path} cannot be switched to journal mode {wished} and stays in {mode}: expected a file on a local disk"
        )
    connection.pragma("synchronous", durability if wal else "full")
    connection.pragma("cache_size", -_CACHE_KIB)
    connection.pragma("temp_store", "memory")
    connection.pragma("journal_size_limit", _WAL_KEPT)
    connection.wal_autocheckpoint(0)


def _migrate(connection: apsw.Connection, version: int) -> None:
    """Apply what is missing, all together or not at all."""
    if version == len(migrations()):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        reached: int = connection.pragma("user_version")
        for number, script in list(enumerate(migrations(), start=1))[reached:]:
            connection.execute(script).fetchall()
            connection.pragma("user_version", number)
        connection.pragma("application_id", APPLICATION_ID)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
