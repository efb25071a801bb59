"""What PostgreSQL says, in our words."""

from __future__ import annotations

import re
from importlib.resources import files

import psycopg
from psycopg import errors as pg

from headrace.backends.refusal import NotLetIn, NotTaken
from headrace.errors import BackendError, ConfigError, Corrupt, Rejected, SchemaMismatch, StoreFull, Unavailable

_SCHEMA = (pg.UndefinedTable, pg.UndefinedFunction, pg.UndefinedColumn, pg.InvalidSchemaName, pg.UndefinedObject)
_LOGIN = (pg.InvalidPassword, pg.InvalidAuthorizationSpecification, pg.InvalidCatalogName)
_DAMAGED = (pg.DataCorrupted, pg.IndexCorrupted)
_PASSING = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, psycopg.NotSupportedError)
"""All that says nothing of what was asked: of connections, resources, locks, transactions and timeouts, of the server's
own mistakes, and of plans that no longer fit (``NotSupportedError``). Trying again may help."""
_CONTENT = ("22", "23", "54")
"""Classes of errors that only what was sent can cause: values, constraints, and limits of the program."""
_FATAL = ("FATAL", "PANIC")
"""After which the connection is gone."""
_USER = "Look at the user and password in the URL"
_NO_TLS = "Turn TLS on there; or, if nobody can listen in on the way, add sslmode=disable to the URL"
_AUTHORITY = "Name the host as its certificate does, and in sslrootcert=PATH the authority that signed it"
_REFUSALS = {
    r"no pg_hba\.conf entry|pg_hba\.conf rejects": "Let this host, user and database in: in the server's pg_hba.conf",
    r'database ".*" does not exist|no such database': "Look at the database in the URL, or create it: createdb NAME",
    r"permission denied for database": "Let the role in: GRANT CONNECT ON DATABASE NAME TO ROLE",
    r'role ".*" (does not exist|is not permitted to log in)|no such user': _USER,
    r"authentication failed|no password supplied": _USER,
    r"SSL, but SSL was required": _NO_TLS,
    r"certificate verify failed|root certificate file .* does not exist|does not match host name": _AUTHORITY,
    r"invalid \w+ value|invalid port number|could not match \d+ ": "Look at the port and the options in the URL",
}
"""What libpq tells of a login in vain, for which it has no codes, and what to do about it."""
_PASSES = re.compile(r"the database system is|too many (clients|connections)|connection slots|timeout expired")
"""Where one of several servers says so, the refusals of others are not the last word."""
_RAISED = "exec_stmt_raise"
"""Where an error comes from that one of our functions raised, about what was asked of it."""
_POOLED = (pg.InvalidSqlStatementName, pg.DuplicatePreparedStatement)
REMEMBERED = (pg.ReadOnlySqlTransaction, pg.QueryCanceled, pg.FeatureNotSupported, *_POOLED)
"""What a session may say only because of what it remembers: settings of the role when it began, and shapes of answers
that have changed since."""

_ROLES = files(__package__).joinpath("migrations", "0013_roles.sql").read_text("utf-8")
_PARTS = {
    part: set(re.findall(r"'(\w+_v1)'", names))
    for part, names in re.findall(r"\('(\w+)', ARRAY\[(.*?)\]", _ROLES, re.S)
}
"""What each part may call, as the migration says."""
_PARTS["janitor"].add("matching_v1")  # is asked for first by whoever changes jobs
_MORE = {"producer": "worker", "reader": "janitor"}
"""The part that has the rights of another one too."""


def translated(error: Exception, where: str) -> Exception:
    """The error to raise; itself where it is none of the server's."""
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if not isinstance(error, psycopg.Error):
        return error
    if isinstance(error, pg.DiskFull):
        return StoreFull(f"{where} has no room left: {said}. Free some space: work goes on by itself.")
    if isinstance(error, pg.OutOfMemory) and "max_locks_per_transaction" in (error.diag.message_hint or ""):
        return Unavailable(
            f"{where} cannot lock more tables at once: {said}. Every day that is kept is one more for every call:"
            " raise max_locks_per_transaction on the server, or keep fewer days"
        )
    if isinstance(error, pg.ReadOnlySqlTransaction) or "session is read-only" in said:
        return Unavailable(
            f"{where} is read-only just now, as a standby is, or a server during a failover: {said}."
            " Nothing was changed; work goes on by itself once it takes writes. A role whose"
            " default_transaction_read_only is on never gets that far"
        )
    if isinstance(error, _POOLED):
        return BackendError(f"{where} does not know its own session again: {said}. Behind a pooler, add pooled=yes")
    if isinstance(error, _SCHEMA):
        return SchemaMismatch(f"{where} lacks what this version of Headrace made there: {said}")
    if refused := _refusal(error):
        told, remedy = refused
        return NotLetIn(f"{where} refuses this login: {told}. {remedy}")
    if isinstance(error, pg.InsufficientPrivilege):
        kind = ConfigError if error.diag.source_function == _RAISED else NotLetIn
        return kind(f"{where} refuses this role: {said}. {error.diag.message_hint or _remedy(said)}")
    if isinstance(error, pg.InvalidParameterValue):
        return NotTaken(". ".join(filter(None, (f"{where}: {said}", error.diag.message_hint))))
    if isinstance(error, psycopg.ProgrammingError) and "connect_timeout" in said:
        return ConfigError(f"{where}: {said}. Expected whole seconds")
    if isinstance(error, pg.CheckViolation) and error.diag.table_name and not error.diag.constraint_name:
        return Unavailable(f"{where} was moving jobs to the table of their day just now: {said}")
    if isinstance(error, psycopg.DataError) or (error.sqlstate or "")[:2] in _CONTENT:
        return Rejected(f"{where} does not take this: {said}")
    if isinstance(error, _DAMAGED):
        return Corrupt(f"{where} is damaged: {said}. Stop all workers and restore a backup")
    if isinstance(error, _PASSING) or error.diag.severity_nonlocalized in _FATAL:
        return Unavailable(f"{where} cannot serve just now: {said}")
    return BackendError(f"{where}: {said}")


def _refusal(error: psycopg.Error) -> tuple[str, str] | None:
    """What was said to a login in vain, and what to do; None if that is not what went wrong."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    known = isinstance(error, _LOGIN)
    if not known and (error.sqlstate or not isinstance(error, psycopg.OperationalError) or _PASSES.search(str(error))):
        return None
    told = ((line, remedy) for line in lines for said, remedy in _REFUSALS.items() if re.search(said, line))
    return next(told, (lines[0], _USER) if known else None)


def allowed(statement: str) -> frozenset[str]:
    """The parts that may send this statement."""
    return frozenset(part for one in _least(statement) for part in (one, _MORE.get(one, one)))


def _least(said: str) -> list[str]:
    named = {word.removeprefix("own_") for word in re.findall(r"\w+", said)}
    return [part for part, names in _PARTS.items() if named & names]


def _remedy(said: str) -> str:
    if parts := _least(said):
        who = " or ".join(parts)
        return f"It takes a {who} that is not confined to tenants: headrace migrate grant {'|'.join(parts)} ROLE"
    return (
        "Use the role that owns the schema, or let it run: headrace migrate grant producer|worker|janitor|reader ROLE"
    )
