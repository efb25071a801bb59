"""What tasks and batch tasks have in common: a function under a name, and the options of its jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, Self, Unpack

from headrace.api.client import Client
from headrace.api.options import BatchOptions, JobOptions, TaskOptions, changed, length, shared, wanted_sections
from headrace.core.names import check_name
from headrace.core.store_access import Owner
from headrace.errors import ConfigError
from headrace.payloads.codec import JsonSerde
from headrace.payloads.pack import Packer
from headrace.text import shown
from headrace.types import Duration, Encoded, NewJob, NewJobOptions
from headrace.worker.middleware import PlainMiddleware
from headrace.worker.retry import RetryPolicy, exponential
from headrace.worker.startups import Per, Startups


class TaskOwner(Owner[Client], Protocol):
    """The app that a task belongs to, or the bundle."""

    @property
    def startups(self) -> Startups: ...

    @property
    def plain_chain(self) -> Sequence[PlainMiddleware]: ...

    def use(self, kind: Any) -> Any: ...


class Registered:
    """A function that jobs of an app run; the base of ``Task`` and ``BatchTask``."""

    results: JsonSerde[Any] = JsonSerde()
    """How results of its jobs are stored."""

    def __init__(
        self,
        owner: TaskOwner,
        function: Callable[..., Any],
        name: str,
        options: TaskOptions | BatchOptions,
        what: str,
    ) -> None:
        """``what``: the task, for messages."""
        self.function = function
        self.name = check_name(name, "task")
        self._what = what
        self._owner = owner
        self._options: NewJobOptions = shared(options, name)
        self._wait: Duration | None = "30s"
        self._given: Mapping[str, Any] = {}
        self._retry = options.get("retry") or exponential()
        self._sections = wanted_sections(options.get("sections"), what)
        self.queue = self._options.get("queue", "default")
        self.overflow = self._options.get("overflow")
        if not isinstance(self._retry, RetryPolicy):
            raise ConfigError(f"{what}: retry: expected a RetryPolicy like exponential(5), got {shown(self._retry)}")

    def check(self, client: Client) -> None:
        """Refuse what the client's store cannot take."""
        client.packer.priority(self._options.get("priority", 0))

    def options(self, **options: Unpack[JobOptions]) -> Self:
        """The same task with other options for the jobs that are made from it: those of ``NewJob``, and ``wait``."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._options, other._wait = changed(self._options, self._wait, options, f"{self._what}: ")
        return other

    @property
    def _short(self) -> str:
        """The last part of its name, for messages."""
        return self.name.rpartition(".")[2]

    def _made(self, cell: bytes, packer: Packer) -> NewJob:
        return NewJob(task=self.name, args=Encoded(cell), id=packer.new_id(), **self._options)

    def _handling(self) -> dict[str, Any]:
        """The part of a handler that follows from the options."""
        return {
            "task": self.name,
            "retry": self._retry,
            "result_serde": self.results,
            "sections": self._sections,
            "result_ttl": length(self._options, "result_ttl", self._owner.client.settings.result_ttl),
            "timeout": length(self._options, "timeout", None),
        }

    def _with_given(self, per: Per) -> Callable[..., Any]:
        """The function, with what it is given in a worker."""
        startups = self._owner.startups
        for name, kind in self._given.items():
            startups.check(kind, per, f"{self._what}: {name}")
        if not self._given or per == "child":
            return self.function
        return partial(self.function, **{name: startups.use(kind) for name, kind in self._given.items()})
