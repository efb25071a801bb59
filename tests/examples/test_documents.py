"""The example of documents: their revisions, their jobs and their events, in one database."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg

from tests.postgres import server

RUN = Path(__file__).parents[2] / "examples" / "documents" / "run.py"


def test_what_becomes_of_the_documents() -> None:
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE archive")
    url = server().url("archive")
    done = subprocess.run(
        [sys.executable, RUN], env=os.environ | {"HEADRACE_URL": url}, capture_output=True, text=True, timeout=60
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = [line.split(maxsplit=3) for line in done.stdout.splitlines() if line.startswith("    ")]
    assert told[:3] == [["available", "1"], ["completed", "1"], ["failed", "1"]]
    assert told[3][0] == "scan:1"
    assert "NotADocument: the body is empty" in told[3][3]
    assert told[4][0] == "letter:1"
    assert told[4][2].endswith("RateLimited:")
    assert told[4][3] == "429: try again later  True"
    assert told[5:] == [
        ["letter", "1", "available", "0"],
        ["minutes", "1", "completed", "2"],
        ["scan", "1", "failed", "0"],
    ]
