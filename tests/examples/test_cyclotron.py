"""A program written for Cyclotron runs on every durable store; only its import and constructors are ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import postgres, valkey

RUN = Path(__file__).parents[2] / "examples" / "cyclotron" / "run.py"
TOLD = """\
created 1000 jobs for team 7
the first ten are urgent: True
completed 730, failed 20, moved 250
completed 980 in the end
a worker dies with 5 jobs
taken back 5, each touched [1] times
poison after 2 deaths: failed, lost, still of queue stalls
replayed, touched 0 times
all are deleted: {'completed': 986, 'failed': 20}
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "valkey"])
def test_the_documented_flow(kind: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    if kind == "postgres":
        url = f"{postgres.server().url()}?schema=flow"
    if kind == "valkey":
        url = f"redis://127.0.0.1:{valkey.server().port}?prefix=flow-{tmp_path.name}&plaintext=yes"
    given = os.environ | {"HEADRACE_URL": url}
    done = subprocess.run([sys.executable, RUN], env=given, capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.returncode) == (TOLD, 0), done.stderr
