"""A system whose store is a server that the harness runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.systems.system import System


class ServedSystem(System):
    """What the roles need to know of the server, whichever it is."""

    served = True

    def url(self, place: str, name: str = "queue") -> str:
        """The address of a database that belongs to this measurement."""
        return Path(place, f"{name}.url").read_text()

    def connect(self, place: str) -> Any:
        """A plain connection to the measured database."""
        raise NotImplementedError

    def left(self, connection: Any) -> bool:
        """Whether the server holds a job that is not over."""
        raise NotImplementedError

    def settle(self, place: str) -> None:
        """After a fill, so that no measurement depends on when the server gets round to its housekeeping."""
        raise NotImplementedError
