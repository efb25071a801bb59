"""The type checkers agree with the pins, wrong calls included."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

ROOT = Path(__file__).parents[2]
PINS = ["api.py", "bind.py", "options.py", "tasks.py"]


@pytest.mark.parametrize("pins", PINS)
def test_the_public_api_is_typed_as_pinned(pins: str) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", f"tests/typing/{pins}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("pins", PINS)
def test_pyright_agrees_with_mypy_in_every_line(pins: str, tmp_path: Path) -> None:
    """It refuses the calls that carry an ignore for mypy, and no others. Editors complain as it does."""
    file = ROOT / "tests/typing" / pins
    settings = {"include": [str(file)], "extraPaths": [str(ROOT / "src")], "typeCheckingMode": "standard"}
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps(settings | {"enableTypeIgnoreComments": False}))
    command = [sys.executable, "-m", "basedpyright", "-p", str(config), "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [one for one in json.loads(done.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    told = {one["range"]["start"]["line"] + 1: one["message"] for one in found}
    meant = {number for number, line in enumerate(file.read_text().splitlines(), start=1) if "# type: ignore" in line}
    assert told.keys() == meant, {line: told.get(line, "no complaint") for line in told.keys() ^ meant}


def test_every_public_name_is_pinned() -> None:
    """A name that is added to the package is added to the pins."""
    pins = (ROOT / "tests/typing/api.py").read_text()
    missing = [name for name in headrace.__all__ if name not in pins]
    assert missing == []


def test_the_package_is_marked_as_typed() -> None:
    """Without ``py.typed`` a user's checker would see none of it."""
    assert (Path(headrace.__file__).parent / "py.typed").is_file()
