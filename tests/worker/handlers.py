"""Handlers that another process can import."""

import time


def spin(seconds: float) -> None:
    """Keep the interpreter busy."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
