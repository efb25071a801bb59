"""Peers live in virtual environments of their own under ``.bench/``, made on demand and kept for the next run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".bench" / "venvs"
_PATIENCE = 300


class NotInstalled(Exception):
    """A peer could not be installed; the text says why."""


def python_for(name: str, packages: Sequence[str]) -> str:
    """The interpreter that can import ``packages``: this one if none are named. Raises ``NotInstalled``."""
    if not packages:
        return sys.executable
    home = HOME / name
    python, stamp = home / "bin" / "python", home / "installed"
    wanted = "\n".join([sys.version, *packages])
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return str(python)
    if home.exists():
        shutil.rmtree(home)
    _make(home, python, packages)
    stamp.write_text(wanted)
    return str(python)


def _make(home: Path, python: Path, packages: Sequence[str]) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    uv = shutil.which("uv")
    if uv:
        _run([uv, "venv", "--quiet", "--python", sys.executable, str(home)])
        _run([uv, "pip", "install", "--quiet", "--python", str(python), *packages])
    else:
        _run([sys.executable, "-m", "venv", str(home)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout or "").strip().splitlines()
        raise NotInstalled(lines[-1] if lines else f"exit code {error.returncode}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from error
