"""The first line of a worker: who it is, what it runs, and where."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import version
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from headrace import Queue, Settings
from headrace.cli.output import counted
from headrace.core.names import worker_name
from headrace.text import url_without_secrets

if TYPE_CHECKING:
    from headrace.cli.loading import Target


class Introduction(Struct, frozen=True):
    """What a worker says of itself before it starts.

    >>> known = Introduction("vm-42", "0.1.0", 42, "sqlite:///jobs.db", ["default", "mail"], ["shop.send"], 10)
    >>> known.sentence
    'worker vm-42 starts: headrace 0.1.0, pid 42, store sqlite:///jobs.db, queues default and mail, 1 task, 10 slots'
    """

    worker: str
    """Empty: it is drawn at random when the worker starts."""
    version: str
    pid: int
    store: str
    queues: Sequence[str]
    tasks: Sequence[str]
    """Empty for a queue, which has one of its own name."""
    slots: int
    unknown_queues: Sequence[str] = ()
    """Queues that no task belongs to."""

    @property
    def sentence(self) -> str:
        """For people."""
        *others, last = self.queues or ["none"]
        queues = f"queues {', '.join(others)} and {last}" if others else f"queue {last}"
        parts = [f"headrace {self.version}", f"pid {self.pid}", f"store {self.store}", queues]
        parts += [counted(len(self.tasks), "task")] if self.tasks else []
        return (
            f"worker {self.worker}{' ' * bool(self.worker)}starts: {', '.join([*parts, counted(self.slots, 'slot')])}"
        )

    @property
    def fields(self) -> dict[str, Any]:
        """For programs."""
        told = ("worker", "version", "pid", "store", "queues", "tasks", "slots")
        return {name: getattr(self, name) for name in told}


def introduce(target: Target, queues: Sequence[str]) -> Introduction:
    """The worker of an app or queue that is about to claim from these queues, or from those of its tasks."""
    own, worker = settings(target).worker, ""
    if own.name != "random":
        worker = worker_name(own.name, Random())
    known = [target.name] if isinstance(target, Queue) else target.queues
    return Introduction(
        worker,
        version("headrace"),
        os.getpid(),
        url_without_secrets(target.client.settings.url),
        list(queues) or known,
        [] if isinstance(target, Queue) else sorted(target.tasks),
        own.concurrency,
        sorted(set(queues) - set(known)),
    )


def settings(target: Target) -> Settings:
    """The settings for a worker of the app or queue; a queue has its own."""
    return target.settings if isinstance(target, Queue) else target.client.settings
