"""How single jobs of a task differ from each other."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from headrace.durations import micros
from headrace.errors import ConfigError
from headrace.types import Duration, Encoded, NewJob


class JobOptions(Struct, frozen=True, kw_only=True):
    """What a task says of its jobs, and ``task.options(…)`` changes."""

    queue: str
    key: str | None = None
    tenant: str = ""
    priority: int = 0
    run_at: datetime | None = None
    delay: Duration | None = None
    max_attempts: int | None = None
    timeout: Duration | None = None
    expires: Duration | None = None
    result_ttl: Duration | None = None
    headers: Mapping[str, str] | None = None
    on_failed: str = "run"
    wait: Duration | None = "30s"
    """How long ``call`` waits for the result."""

    def check(self, task: str) -> None:
        """Refuse lengths that are none, when the task is made and not when it is used."""
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
            priority=self.priority,
            run_at=self.run_at,
            delay=self.delay,
            max_attempts=self.max_attempts,
            timeout=self.timeout,
            expires=self.expires,
            result_ttl=self.result_ttl,
            headers=self.headers,
            on_failed=self.on_failed,
            id=job_id,
        )
