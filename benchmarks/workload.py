"""What PostgreSQL did for a drained job: time by function and by statement, rows, buffers and bytes of its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_LINES = 25
_WIDTH = 110
FUNCTIONS = """
    SELECT funcname, calls, self_time, total_time FROM pg_stat_user_functions
    WHERE calls > 0 ORDER BY self_time DESC
"""
STATEMENTS = """
    SELECT s.toplevel, s.calls, s.rows, s.total_exec_time, s.shared_blks_hit + s.shared_blks_read, s.wal_bytes, s.query
    FROM pg_stat_statements AS s JOIN pg_database AS d ON d.oid = s.dbid
    WHERE d.datname = %(name)s ORDER BY s.total_exec_time DESC
"""


def report(functions: Sequence[Any], statements: Sequence[Any], count: int) -> str:
    """Per job, for a database in which so many jobs were drained since the server's counts were cleared."""
    return "\n".join([*_functions(functions, count), "", *_statements(statements, count)])


def _functions(rows: Sequence[Any], count: int) -> list[str]:
    lines = [f"{'own':>8}  {'whole':>8}  {'calls':>7}  function on the server   (µs/job, calls/job)"]
    for name, calls, own, whole in rows[:_LINES]:
        lines.append(f"{own * 1e3 / count:8.2f}  {whole * 1e3 / count:8.2f}  {calls / count:7.4f}  {name}")
    return lines


def _statements(rows: Sequence[Any], count: int) -> list[str]:
    """A statement inside a function counts for itself, and for the one that called it too."""
    head = f"{'time':>8}  {'calls':>7}  {'rows':>6}  {'pages':>6}  {'log':>6}"
    lines = [f"{head}  statement, those inside functions indented   (µs, B per job)"]
    for top, calls, rows_, millis, pages, log, query in rows[:_LINES]:
        text = ("" if top else "  ") + " ".join(query.split())[:_WIDTH]
        lines.append(
            f"{millis * 1e3 / count:8.2f}  {calls / count:7.4f}  {rows_ / count:6.2f}  {pages / count:6.1f}"
            f"  {float(log) / count:6.0f}  {text}"
        )
    return lines
