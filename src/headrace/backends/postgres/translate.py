"""What PostgreSQL says, in our words."""

from __future__ import annotations

import psycopg
from psycopg import errors as pg

from headrace.errors import BackendError, ConfigError, SchemaMismatch, StoreFull, Unavailable

_SCHEMA = (pg.UndefinedTable, pg.UndefinedFunction, pg.UndefinedColumn, pg.InvalidSchemaName, pg.UndefinedObject)
_RIGHTS = (pg.InsufficientPrivilege, pg.InvalidPassword, pg.InvalidAuthorizationSpecification)
_PASSING = (
    psycopg.OperationalError, psycopg.InterfaceError, pg.DeadlockDetected, pg.SerializationFailure, pg.LockNotAvailable,
    pg.QueryCanceled, pg.OutOfMemory,
)  # fmt: skip
_POOLED = (pg.InvalidSqlStatementName, pg.DuplicatePreparedStatement)


def translated(error: Exception, where: str) -> Exception:
    """The error to raise; itself where it is none of the server's."""
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if not isinstance(error, psycopg.Error):
        return error
    if isinstance(error, pg.DiskFull):
        return StoreFull(f"{where} has no room left: {said}. Free some space: work goes on by itself.")
    if isinstance(error, pg.ReadOnlySqlTransaction) or "session is read-only" in said:
        return Unavailable(
            f"{where} is read-only just now, as a standby is, or a server during a failover: {said}."
            " Nothing was changed; work goes on by itself once it takes writes"
        )
    if isinstance(error, _POOLED):
        return BackendError(f"{where} does not know its own session again: {said}. Behind a pooler, add pooled=yes")
    if isinstance(error, _SCHEMA):
        return SchemaMismatch(f"{where} lacks what this version of Headrace made there: {said}")
    if isinstance(error, _RIGHTS):
        return ConfigError(f"{where} refuses this role: {said}. Use one that owns the schema")
    if isinstance(error, _PASSING):
        return Unavailable(f"{where} cannot serve just now: {said}")
    return BackendError(f"{where}: {said}")
