"""The example of documents: their revisions, their jobs and their events, in one database."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.postgres import server

RUN = Path(__file__).parents[2] / "examples" / "documents" / "run.py"


def run(url: str) -> subprocess.CompletedProcess[str]:
    given = os.environ | {"HEADRACE_URL": url}
    return subprocess.run([sys.executable, RUN], env=given, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "url", ["postgresql://127.0.0.1:1/archive", "memory://", "{there}/nowhere", "{there}/x?schema=y"]
)
def test_without_a_database_it_says_so_in_a_line(url: str) -> None:
    done = run(url.format(there=server().url().rpartition("/")[0]))
    assert done.returncode == 1
    assert "HEADRACE_URL names the database" in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_becomes_of_the_documents() -> None:
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE archive")
    done = run(server().url("archive"))
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
    again = run(server().url("archive"))
    told = [line.split(maxsplit=3) for line in again.stdout.splitlines() if line.startswith("    ")]
    assert told[:3] == [["available", "1"], ["completed", "1"], ["failed", "2"]]
    assert told[-3:] == [
        ["letter", "1", "available", "0"],
        ["minutes", "1", "completed", "2"],
        ["scan", "1", "failed", "0"],
    ]
