"""SQL of the benchmark's own tables and loops: one file each, with named statements."""

from __future__ import annotations

import re
import time
from functools import cache
from pathlib import Path
from typing import Any

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def read(name: str) -> dict[str, str]:
    """The statements of ``name.sql``, by name."""
    _, *parts = _NAME.split(Path(__file__).with_name(f"{name}.sql").read_text("utf-8"))
    return {part: text.strip() for part, text in zip(parts[::2], parts[1::2], strict=True)}


def connected(url: str, name: str) -> Any:
    """A connection to the tables of ``name.sql``, which are made where there are none; every statement is prepared."""
    import psycopg

    connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
    for part in ("schema", "session"):
        connection.execute(read(name)[part], prepare=False)
    return connection


def micros() -> int:
    """Now, as such tables keep it."""
    return time.time_ns() // 1_000
