"""Jobs as text and JSON: the list, one in full, and what to do about one that is not running."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from headrace import Why, WhyCode
from headrace.api.info import JobInfo
from headrace.cli.output import clean, print_block, print_fields, print_table
from headrace.cli.times import exact, now
from headrace.core.durations import relative
from headrace.seam.instants import to_datetime
from headrace.text import losses
from headrace.types import JobState

_LONGEST = 2_000
_LONGEST_REASON = 60
_DETAILS = ("args", "result", "failures", "headers")


def in_words(state: JobState) -> str:
    """A state where its job's time is not known.

    >>> in_words(JobState.AVAILABLE), in_words(JobState.RUNNING)
    ('waiting', 'running')
    """
    return "waiting" if state is JobState.AVAILABLE else state.value


def summary(job: JobInfo) -> dict[str, Any]:
    """A job as an entry of a list, for programs."""
    return {name: value for name, value in job.to_dict().items() if name not in _DETAILS}


def in_full(job: JobInfo, why: Why) -> dict[str, Any]:
    """Everything about a job, for programs; all instants in one format."""
    data = job.to_dict()
    for failure in data["failures"]:
        failure["at"] = msgspec.to_builtins(to_datetime(failure["at"]))
    return data | {"why": why.sentence, "why_code": why.code.value}


def print_jobs(jobs: list[JobInfo]) -> None:
    """A list of jobs for people; with reasons, if one is a dead letter."""
    at = now()
    heads = ["id", "state", "queue", "task", "failures", "key", "when"]
    rows = [
        [job.id, job.seen_state(at), job.queue, job.task, job.attempt, job.key or "", _moment(job, at)] for job in jobs
    ]
    if any(job.state is JobState.FAILED for job in jobs):
        heads.append("reason")
        rows = [[*row, _cut(job.reason or "")] for row, job in zip(rows, jobs, strict=True)]
    print_table(heads, rows)


def _cut(reason: str) -> str:
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…"


def _moment(job: JobInfo, at: datetime) -> str:
    """The instant that matters in the job's state."""
    if job.state.terminal:
        return f"ended {relative(job.finished_at, at)}"
    if job.state is JobState.RUNNING:
        return f"running since {relative(job.started_at, at)}" + (f": {job.progress}" if job.progress else "")
    return f"due {relative(job.run_at, at)}"


def print_job(job: JobInfo, why: Why) -> None:
    """Everything about one job, for people."""
    at = now()
    print_fields(
        [
            ("id", job.id),
            ("task", job.task),
            ("queue", job.queue),
            (
                "state",
                job.seen_state(at) + (f": {job.reason}" if job.reason not in (None, "", job.state.value) else ""),
            ),
            ("why", "" if why.code in (WhyCode.RUNNING, WhyCode.ENDED) else why.sentence),
            ("tenant", job.tenant),
            ("group", job.group),
            ("key", job.key),
            ("priority", job.priority or ""),
            ("enqueued", exact(job.enqueued_at, at)),
            ("due", exact(job.run_at, at)),
            ("expires", exact(job.expires_at, at)),
            ("ended", exact(job.finished_at, at)),
            ("started", exact(job.started_at, at)),
            ("progress", job.progress or ""),
            ("worker", job.worker),
            ("lease until", exact(job.lease_until, at)),
            ("attempts", f"{job.attempt} failed" + (f" of {job.max_attempts}" if job.max_attempts else "")),
            ("lost", losses(job.lost) if job.lost else ""),
            ("headers", shorten(job.headers) if job.headers else ""),
            ("args", shorten(job.args)),
            ("result", shorten(job.result) if job.held else ""),
        ]
    )
    for failure in job.failures:
        when = relative(to_datetime(failure.at), at)
        which = f"attempt {failure.attempt}" if failure.times == 1 else f"{failure.times} times in a row"
        print(f"\n{which}, {when}: {clean(failure.type)}: {clean(failure.message)}")
        if failure.traceback:
            print_block(failure.traceback)


def as_json_text(value: Any) -> str:
    """A value as JSON on one line, for people."""
    return clean(json.dumps(msgspec.to_builtins(value, str_keys=True), ensure_ascii=False))


def shorten(value: Any) -> str:
    """The same, cut if it is long."""
    text = as_json_text(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … ({len(text)} characters; --json shows all)"


def remedy(job: JobInfo, why: Why, app: str | None = None, served: Sequence[str] = ()) -> str:
    """The command that removes, or explains, what keeps the job from running; empty if there is none. ``served``: the
    queues that a worker of the app claims from by default."""
    queue, tenant, task = (shlex.quote(name) for name in (job.queue, job.tenant, job.task))
    match why.code:
        case WhyCode.JOB_PAUSED:
            return f"headrace job resume {job.id}"
        case WhyCode.QUEUE_PAUSED:
            return f"headrace queue resume {queue}"
        case WhyCode.TASK_PAUSED:
            return f"headrace queue resume {queue} --task {task}"
        case WhyCode.TENANT_PAUSED:
            return f"headrace tenant resume {queue} {tenant}"
        case WhyCode.QUEUE_LIMIT | WhyCode.QUEUE_RATE | WhyCode.TASK_RATE:
            return f"headrace queue limit {queue}"
        case WhyCode.TENANT_LIMIT | WhyCode.TENANT_RATE | WhyCode.TENANT_WORKERS:
            return f"headrace tenant list {queue}"
        case WhyCode.NO_WORKER:
            worker = f"headrace worker {'APP' if app is None else shlex.quote(app)}"
            return worker if job.queue in served else f"{worker} --queue {queue}"
        case _:
            return ""
