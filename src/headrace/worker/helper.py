"""A helper: another process of the same app, for jobs on their last chance."""

from __future__ import annotations

from typing import Protocol


class Helper(Protocol):
    """Takes such jobs off the hands of a worker, which need not make room for them then."""

    @property
    def useful(self) -> bool:
        """Whether they can be left to it. If not, the worker makes room, as one without a helper does."""

    def call(self) -> None:
        """The worker was chosen for a job on its last chance: have a process take it, unless one is at it already."""
