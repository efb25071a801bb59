"""What ``make check`` promises of tests/unit: a test that needs more than its own process fails there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[1] / "unit" / "conftest.py"
TESTS = """
import os, socket, subprocess
from contextlib import suppress
import pytest

ATTEMPTS = [
    lambda: subprocess.run(["true"]),
    lambda: os.fork() or os._exit(0),
    lambda: socket.create_connection(("127.0.0.1", 1)),
    lambda: socket.create_server(("127.0.0.1", 0)),
]

def test_alone():
    for end in socket.socketpair():
        end.close()

@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_told(attempt):
    attempt()

@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_swallowed(attempt):
    with suppress(BaseException):
        attempt()
"""


def test_a_unit_test_that_needs_a_process_or_a_server_fails(tmp_path: Path) -> None:
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert "4 failed, 5 passed, 8 errors" in done.stdout, done.stdout + done.stderr
    for event in ("subprocess.Popen", "os.fork", "socket.connect", "socket.bind"):
        assert f"move this one out of tests/unit: {event}(" in done.stdout
