"""A helper: another process of the same app, which runs jobs on their last chance for a worker."""

from __future__ import annotations

from typing import Protocol


class Helper(Protocol):
    """The helper as its worker sees it. Thanks to it, the worker need not make room for such jobs."""

    @property
    def useful(self) -> bool:
        """Whether such jobs can be left to it. If not, the worker makes room, as one without a helper does."""

    def start(self) -> None:
        """The worker was chosen for a job on its last chance: start a process for it, unless one runs already."""


class Helped(Protocol):
    """The worker as its helper sees it."""

    def job_found(self) -> None:
        """The helper has claimed a job on its last chance, and is about to run it."""
