"""What capabilities of a store on PostgreSQL are made of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from headrace.seam.records import JobId

Send = Callable[[Iterable[tuple[str, JobId | None]]], None]
"""Puts hints on their way."""


class Call(Protocol):
    """Runs a statement by its name; its rows."""

    def __call__(self, name: str, *params: Any) -> Awaitable[list[Any]]: ...


class Capability:
    """Each operation is one call of a function on the server, as a rule, and may send hints."""

    def __init__(self, call: Call, send: Send) -> None:
        self._call = call
        self._send = send
