"""What PostgreSQL says, in our words."""

from __future__ import annotations

import re

import psycopg
from psycopg import errors as pg

from headrace.errors import BackendError, ConfigError, SchemaMismatch, StoreFull, Unavailable

_SCHEMA = (pg.UndefinedTable, pg.UndefinedFunction, pg.UndefinedColumn, pg.InvalidSchemaName, pg.UndefinedObject)
_LOGIN = (pg.InvalidPassword, pg.InvalidAuthorizationSpecification)
_PASSING = (
    psycopg.OperationalError, psycopg.InterfaceError, pg.DeadlockDetected, pg.SerializationFailure, pg.LockNotAvailable,
    pg.QueryCanceled, pg.OutOfMemory,
)  # fmt: skip
_POOLED = (pg.InvalidSqlStatementName, pg.DuplicatePreparedStatement)

_PARTS = {
    "producer": ("insert_v1", "enqueue_v1", "ask_v1", "fetch_v1"),
    "worker": (
        "claim_v1", "turn_v1", "complete_v1", "complete_bound_v1", "finish_v1", "renew_v1", "reap_v1",
    ),
    "janitor": (
        "sweep_v1", "sweep_day_v1", "sweep_results_v1", "forget_queues", "make_days_v1", "alter_v1", "configure_v1",
        "matching_v1",
    ),
    "reader": ("fetch_v1", "matching_v1", "stats_v1", "places_v1", "workers_v1", "jobs_v1", "queues_v1"),
}  # fmt: skip
"""The least that gives the right to each; ``matching_v1`` is asked for first by whoever changes jobs."""


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
    if isinstance(error, _LOGIN):
        return ConfigError(f"{where} does not let this role in: {said}. Look at the user and password in the URL")
    if isinstance(error, pg.InsufficientPrivilege):
        return ConfigError(f"{where} refuses this role: {said}. {error.diag.message_hint or _remedy(said)}")
    if isinstance(error, pg.InvalidParameterValue):
        return ConfigError(". ".join(filter(None, (f"{where}: {said}", error.diag.message_hint))))
    if isinstance(error, _PASSING):
        return Unavailable(f"{where} cannot serve just now: {said}")
    return BackendError(f"{where}: {said}")


def _remedy(said: str) -> str:
    named = {word.removeprefix("own_") for word in re.findall(r"\w+", said)}
    if parts := [part for part, names in _PARTS.items() if named & set(names)]:
        who = " or ".join(parts)
        return f"It takes a {who} that is not confined to tenants: headrace migrate grant {'|'.join(parts)} ROLE"
    return (
        "Use the role that owns the schema, or let it run: headrace migrate grant producer|worker|janitor|reader ROLE"
    )
