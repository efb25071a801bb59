"""What ``headrace doctor`` says of a PostgreSQL server's settings."""

from __future__ import annotations

import pytest

from headrace.backends.postgres.checks import commits

DISK = "what was acknowledged is on the server's disk"


@pytest.mark.parametrize(
    ("commit", "fsync", "standbys", "level", "what"),
    [
        ("on", "on", "", "ok", f"synchronous_commit = on: {DISK}"),
        ("local", "on", "one", "ok", f"synchronous_commit = local: {DISK}"),
        ("on", "on", "one", "ok", f"synchronous_commit = on: {DISK}, and on that of its synchronous standbys"),
        ("remote_apply", "on", "one", "ok", f"synchronous_commit = remote_apply: {DISK}, and applied by its"),
        ("off", "on", "", "warn", "synchronous_commit = off: a crash of the server may lose"),
        ("on", "off", "", "warn", "fsync = off: a crash of its machine may destroy"),
    ],
)
def test_what_survives(commit: str, fsync: str, standbys: str, level: str, what: str) -> None:
    found, check, told, advice = commits(commit, fsync, standbys)
    assert (found, check) == (level, "commits")
    assert told.startswith(what)
    assert bool(advice) == (level == "warn")
