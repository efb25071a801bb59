"""Finds a Chromium for the tests of the dashboard: one that is there, the distribution's, or Playwright's own.

``python -m tests.chromium`` gets one if need be, and says where it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "chrome-headless-shell")
VARIABLE = "HEADRACE_TEST_CHROMIUM"
MISSING = f"the dashboard's tests need Chromium: install the package chromium, or set {VARIABLE} to its path"
_APT = (["apt-get", "update", "-q"], ["apt-get", "install", "-q", "-y", "--no-install-recommends", "chromium"])
_PATIENCE = 600


def find() -> str | None:
    """The path of a Chromium that is there already."""
    if given := os.environ.get(VARIABLE):
        return given if os.access(given, os.X_OK) else None
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or _of_playwright()


def _of_playwright() -> str | None:
    home = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    shells = sorted(home.glob("chromium*/*/*")) if home.is_dir() else []
    names = {"chrome", "headless_shell", "chrome-headless-shell"}
    return next((str(path) for path in reversed(shells) if path.name in names), None)


def get() -> str | None:
    """The same; if there is none, it is installed, if that can be done."""
    if (found := find()) is not None:
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        for command in _APT:
            if not _done(command, {"DEBIAN_FRONTEND": "noninteractive"}):
                break
    if find() is None:
        _done([sys.executable, "-m", "playwright", "install", "--only-shell", "chromium"], {})
    return find()


def _done(command: list[str], variables: dict[str, str]) -> bool:
    try:
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


if __name__ == "__main__":
    place = get()
    sys.exit(MISSING if place is None else sys.stdout.write(f"chromium: {place}\n") and None)
