"""A unit test starts no server and no process, and talks to none: one that tries to fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

_OUTSIDE = {
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen",
    "socket.bind", "socket.connect",
}  # fmt: skip
"""Names of the interpreter's audit events."""
_tried: list[str] = []
_watching = False


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if _watching and event in _OUTSIDE:
        _tried.append(f"{event}{args}")
        raise AssertionError(_tried[-1])


sys.addaudithook(_watch)


@pytest.fixture(autouse=True)
def inside() -> Iterator[None]:
    """Fails the test afterwards too, since the code under test may have swallowed the error."""
    global _watching
    _tried.clear()
    _watching = True
    yield
    _watching = False
    assert not _tried, f"a unit test needs no server and no process; move this one out of tests/unit: {_tried[0]}"
