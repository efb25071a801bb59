"""Facts about a server for operators: what can be overheard, and what survives a crash."""

from __future__ import annotations

from typing import TypeAlias

Fact: TypeAlias = tuple[str, str, str, str]
"""``ok``, ``warn`` or ``fail``, the subject, what is the case, and what to do."""

SETTINGS = (
    "SELECT current_setting('synchronous_commit'), current_setting('fsync'),"
    " current_setting('synchronous_standby_names')"
)
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
