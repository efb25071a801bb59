"""The type checker agrees with the pins, wrong calls included."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import headrace

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("pins", ["api.py", "bind.py", "options.py", "tasks.py"])
def test_the_public_api_is_typed_as_pinned(pins: str) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", f"tests/typing/{pins}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_public_name_is_pinned() -> None:
    """A name that is added to the package is added to the pins."""
    pins = (ROOT / "tests/typing/api.py").read_text()
    missing = [name for name in headrace.__all__ if name not in pins]
    assert missing == []


def test_the_package_is_marked_as_typed() -> None:
    """Without ``py.typed`` a user's checker would see none of it."""
    assert (Path(headrace.__file__).parent / "py.typed").is_file()
