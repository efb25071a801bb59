"""Pages about jobs: the list, one job, bulk operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headrace.admin.actions import Action, change_of
from headrace.admin.admin import COUNTED
from headrace.admin.operations import Operation
from headrace.admin.terms import parse_terms
from headrace.admin.views import JobCount, JobDetails, JobPage, Overview
from headrace.errors import ConfigError
from headrace.seam.records import Change
from headrace.types import JobState
from headrace.web.dashboard.pages import Page, PageSet
from headrace.web.routes import whole

PAGE = 50
_COUNTED = 1_000
STATES = ("due", "scheduled", "retrying", "running", "paused", "completed", "cancelled", "dead")
NEED = {Action.MOVE: "queue", Action.PRIORITISE: "priority", Action.RESCHEDULE: "delay, such as 10m"}
"""What the argument of an action is."""


class Jobs(PageSet):
    """The pages."""

    def paths(self) -> Mapping[str, Page]:
        return {
            "/jobs": self.jobs,
            "/jobs/count": self.count,
            "/job/{id}": self.job,
            "/bulk": self.bulk,
            "/operations": self.operations,
            "/operation/{id}": self.operation,
            "/audit": self.audit,
        }

    async def jobs(self, request: Request) -> Response:
        query = request.query_params
        wanted, after, found, wrong = query.get("filter", "").strip(), query.get("after"), JobPage([]), ""
        try:
            found = await self._admin.jobs(wanted, after or None, PAGE)
        except ConfigError as error:
            wrong = str(error)
        seen = await self._live.overview()
        return await self._pages.show(
            request,
            "jobs.html",
            wanted=wanted,
            after=after,
            found=found,
            wrong=wrong,
            known=None if wrong else known_count(wanted, seen),
            states=STATES,
            actions=list(Action),
            need=NEED,
            queues=sorted(queue.name for queue in seen.queues)[:100],
        )

    async def count(self, request: Request) -> Response:
        found = await self._admin.count(request.query_params.get("filter", ""), _COUNTED)
        return await self._pages.show(request, "_count.html", found=found)

    async def job(self, request: Request) -> Response:
        details = await self._admin.job(request.path_params["id"])
        return await self._pages.show(request, "job.html", **shown_job(details), revealed=False)

    async def bulk(self, request: Request) -> Response:
        """What an operation would do: the number of jobs, and the first of them."""
        query = request.query_params
        wanted, action = query.get("filter", "").strip(), query.get("action", "")
        argument = query.get("argument", "").strip() or None
        change = change_of(action, argument)
        found, first = await self._admin.primary.count(wanted), await self._admin.jobs(wanted, None, 5)
        return await self._pages.show(
            request, "_bulk.html", wanted=wanted, action=action, argument=argument, found=found, first=first.jobs,
            counted=COUNTED, applies=_applies(change),
        )  # fmt: skip

    async def operations(self, request: Request) -> Response:
        return await self._pages.show(request, "operations.html", operations=await self._admin.operations())

    async def operation(self, request: Request) -> Response:
        found = await self._admin.operation(request.path_params["id"])
        return await self._pages.show(request, "operation.html", op=found, share=_share(found))

    async def audit(self, request: Request) -> Response:
        before = request.query_params.get("before")
        entries = await self._admin.audit.entries(None if not before else whole(before, "before"), PAGE)
        return await self._pages.show(request, "audit.html", entries=entries, full=len(entries) == PAGE)


def shown_job(details: JobDetails) -> dict[str, Any]:
    """What the page of a job needs."""
    job, state = details.job, details.job.state
    actions = [action for action in Action if action not in NEED and state in change_of(action).applies]
    if state in (JobState.AVAILABLE, JobState.PAUSED):
        actions.insert(0, Action.RESCHEDULE)
    others = [one for one in details.sections if one.name != "parameters"]
    facts = [
        ("Task", job.task), ("Queue", job.queue), ("Tenant", job.tenant), ("Key", job.key), ("Group", job.group),
        ("Priority", job.priority), ("Attempts", _attempts(job.attempt, job.max_attempts)),
        ("Losses", job.lost or None), ("Worker", job.worker), ("Source", job.source), ("Reason", job.reason),
    ]  # fmt: skip
    times = [
        ("Enqueued", job.enqueued_at), ("Due", job.run_at), ("Started", job.started_at), ("Ended", job.finished_at),
        ("Lease until", job.lease_until), ("Expires", job.expires_at),
    ]  # fmt: skip
    return {
        "details": details,
        "job": job,
        "actions": actions,
        "sections": others,
        "parameters": next((one for one in details.sections if one.name == "parameters"), None),
        "facts": [(name, value) for name, value in facts if value not in (None, "")],
        "times": [(name, value) for name, value in times if value is not None],
    }


def known_count(wanted: str, seen: Overview) -> JobCount | None:
    """How many jobs a filter finds, if the store's own numbers tell it: no term, a queue, a state, or both."""
    fields = {"queue": "", "state": ""}
    for term in parse_terms(wanted):
        plain = term.op == ":" and not term.negated and len(term.values) == 1 and "*" not in term.values[0]
        if not plain or fields.get(term.field, "?"):
            return None
        fields[term.field] = term.values[0]
    state = {"dead": "failed", "paused": "jobs_paused"}.get(fields["state"], fields["state"])
    queues = [one for one in seen.queues if fields["queue"] in ("", one.name)]
    names = ("available", "running", "jobs_paused", "completed", "cancelled", "failed")
    if state == "due":
        return JobCount(sum(queue.due for queue in queues))
    if state and state not in names:
        return None
    return JobCount(sum(getattr(queue, name) for queue in queues for name in names if state in ("", name)))


def _applies(change: Change) -> str:
    return ", ".join(state.value for state in JobState if state in change.applies)


def _attempts(failed: int, most: int | None) -> str:
    return f"{failed} failed" + ("" if most is None else f" of at most {most}")


def _share(op: Operation) -> float | None:
    """How far it has come; None: nobody knows, as not all jobs that match were counted."""
    if op.state.terminal:
        return 1.0
    if op.expected >= COUNTED:
        return None
    return min(1.0, op.met / op.expected) if op.expected else 0.0
