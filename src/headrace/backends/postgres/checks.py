"""Facts about a server for operators: what can be overheard, and what survives a crash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Fact: TypeAlias = tuple[str, str, str, str]
"""``ok``, ``warn`` or ``fail``, the subject, what is the case, and what to do."""

SETTINGS = (
    "SELECT current_setting('synchronous_commit'), current_setting('fsync'),"
    " current_setting('synchronous_standby_names')"
)
EXTENSION = (
    "SELECT quote_ident(n.nspname) FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace"
    " WHERE e.extname = 'pg_stat_statements'"
)
"""Where the server keeps how long statements took, if it does."""
STATEMENTS = """
    SELECT substring(s.query FROM '([a-z_]+)_v1[(]'), s.mean_exec_time, s.max_exec_time
    FROM {place}.pg_stat_statements AS s JOIN pg_database AS d ON d.oid = s.dbid
    WHERE d.datname = current_database() AND position('"{schema}".' IN s.query) > 0 AND s.mean_exec_time > {long}
        AND s.query ~ '[a-z]_v1[(]' AND s.query !~ '_day|duty'
    ORDER BY s.mean_exec_time DESC LIMIT 10
"""
"""Our calls that took long on average, without what makes and drops days."""
LONG = 50
"""Milliseconds."""
_ON_DISK = "what was acknowledged is on the server's disk"
_COMMITS = {
    "on": f"{_ON_DISK}, and on that of its synchronous standbys",
    "remote_apply": f"{_ON_DISK}, and applied by its synchronous standbys",
    "remote_write": f"{_ON_DISK}, and was handed to the system of its synchronous standbys",
    "local": _ON_DISK,
    "off": "a crash of the server may lose what was acknowledged in the last second",
}


def transport(mode: str) -> list[Fact]:
    """``mode``: the sslmode under which everything may go in clear to another machine, or nothing."""
    if not mode:
        return []
    what = f"sslmode={mode}: what is sent to another machine may go in clear, the password too"
    return [("warn", "transport", what, "leave sslmode out of the URL, if the server speaks TLS")]


def commits(commit: str, fsync: str, standbys: str) -> Fact:
    """What survives, by the three settings."""
    if fsync == "off":
        what = "fsync = off: a crash of its machine may destroy the whole database"
        return ("warn", "commits", what, "set fsync = on in the server's configuration")
    told = _COMMITS.get(commit, _ON_DISK) if standbys or commit == "off" else _ON_DISK
    advice = "ALTER ROLE … SET synchronous_commit = on, for the role of Headrace" if commit == "off" else ""
    return ("warn" if commit == "off" else "ok", "commits", f"synchronous_commit = {commit}: {told}", advice)


def slow_calls(rows: Sequence[tuple[str, float, float]]) -> list[Fact]:
    """What ``STATEMENTS`` found: the call, and how many milliseconds it took on average and at most."""
    if not rows:
        return []
    told = ", ".join(f"{name} {mean:.0f} ms on average, {most:.0f} at most" for name, mean, most in rows)
    advice = (
        "look in pg_stat_activity for what blocks it; if nothing does, and the server has memory and CPU to spare, "
        "report the call and how many jobs, queues and tenants there are. SELECT pg_stat_statements_reset() begins anew"
    )
    return [("warn", "statements", f"slow, according to pg_stat_statements: {told}", advice)]
