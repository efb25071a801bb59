"""Handlers that another process can import."""

import time
from pathlib import Path

from headrace import progress


def spin(seconds: float) -> None:
    """Keep the interpreter busy."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def advance(go: str) -> str:
    """Say how far it has come, and wait for a file."""
    while not Path(go).exists():
        progress(0.5, "half")
        time.sleep(0.02)
    return "done"
