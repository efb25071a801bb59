"""What a shard can do beside the ten operations, by way of scripts."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol


class Run(Protocol):
    """Runs a script."""

    def __call__(self, name: str, *args: Any) -> Awaitable[Any]: ...


class Capability:
    """Something that a shard can do."""

    def __init__(self, run: Run) -> None:
        self._run = run
