"""How single jobs of a task differ from each other."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from headrace.core.durations import micros
from headrace.core.names import check_queue
from headrace.errors import ConfigError
from headrace.text import shown
from headrace.types import Duration, Encoded, NewJob


class JobOptions(Struct, frozen=True, kw_only=True):
    """What a task says of its jobs, and ``task.options(…)`` changes."""

    queue: str
    key: str | None = None
    tenant: str = ""
    group: str | None = None
    priority: int = 0
    run_at: datetime | None = None
    delay: Duration | None = None
    max_attempts: int | None = None
    timeout: Duration | None = None
    expires: Duration | None = None
    result_ttl: Duration | None = None
    headers: Mapping[str, str] | None = None
    on_failed: str = "run"
    overflow: str | None = None
    when_full: str = "raise"
    wait: Duration | None = "30s"
    """How long ``call`` waits for the result."""

    def check(self, task: str) -> None:
        """Refuse what no job of the task could have, when it is made and not when it is used."""
        if self.overflow is not None:
            check_queue(self.overflow, f"task {task}: overflow")
            if self.overflow == self.queue:
                raise ConfigError(f"task {task}: overflow: expected another queue than its own, got {self.overflow!r}")
        if self.when_full not in ("raise", "block"):
            raise ConfigError(f"task {task}: when_full: expected 'raise' or 'block', got {shown(self.when_full)}")
        for what in ("timeout", "result_ttl", "delay", "expires"):
            if (given := getattr(self, what)) is not None:
                micros(given, f"task {task}: {what}")

    def changed(self, changes: Mapping[str, Any]) -> JobOptions:
        """The same with changes."""
        if unknown := changes.keys() - set(self.__struct_fields__):
            known = ", ".join(self.__struct_fields__)
            raise ConfigError(f"unknown option {sorted(unknown)[0]!r}; there are: {known}")
        return msgspec.structs.replace(self, **changes)

    def job(self, task: str, cell: bytes, job_id: bytes) -> NewJob:
        """A job with these options."""
        return NewJob(
            task=task,
            queue=self.queue,
            args=Encoded(cell),
            key=self.key,
            tenant=self.tenant,
            group=self.group,
            priority=self.priority,
            run_at=self.run_at,
            delay=self.delay,
            max_attempts=self.max_attempts,
            timeout=self.timeout,
            expires=self.expires,
            result_ttl=self.result_ttl,
            headers=self.headers,
            on_failed=self.on_failed,
            overflow=self.overflow,
            when_full=self.when_full,
            id=job_id,
        )
