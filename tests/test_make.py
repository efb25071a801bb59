"""What ``make`` finds out by itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

MAKEFILE = Path(__file__).parents[1] / "Makefile"


def _newer(home: Path) -> str:
    """The Python from 3.12 on that ``make test-all`` takes, where none has a command."""
    commands = home / "bin"
    commands.mkdir()
    for name in ("sh", "ls"):
        (commands / name).symlink_to(str(shutil.which(name)))
    return subprocess.run(
        [str(shutil.which("make")), "-s", "-f", MAKEFILE, "--eval", "found: ; $(info $(NEWER))", "found"],
        env={"HOME": str(home), "PATH": str(commands)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.strip()


def test_the_newest_python_of_pyenv_that_works_is_found(tmp_path: Path) -> None:
    works, broken = "#!/bin/sh\n", "#!/bin/sh\nexit 127\n"
    for version, script in {"3.11.7": works, "3.12.1": works, "3.13.0": works, "3.14.2": broken}.items():
        python = tmp_path / ".pyenv" / "versions" / version / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(script)
        python.chmod(0o755)
    assert _newer(tmp_path) == f"{tmp_path}/.pyenv/versions/3.13.0/bin/python"


def test_where_there_is_none_nothing_is_found(tmp_path: Path) -> None:
    assert _newer(tmp_path) == ""
