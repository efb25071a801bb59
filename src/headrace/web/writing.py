"""Routes that change things: for operators, and only if the server allows it."""

from __future__ import annotations

from msgspec import Struct
from starlette.requests import Request

from headrace.admin import views
from headrace.admin.admin import Admin
from headrace.admin.audit import AuditEntry
from headrace.admin.operations import PACE, Operation
from headrace.web.answers import principal
from headrace.web.routes import ApiRoute, Parameter, read_body, whole
from headrace.web.tokens import Role


class ChangeJobs(Struct, forbid_unknown_fields=True):
    """Jobs by id, and what to do to them."""

    ids: list[str]
    action: str
    argument: str | None = None


class PauseQueue(Struct, forbid_unknown_fields=True):
    """For how long, and for whom; all optional."""

    lasts: str | None = None
    tenant: str | None = None
    task: str | None = None


class SubmitOperation(Struct, forbid_unknown_fields=True):
    """A filter, and what to do to all jobs that it finds."""

    filter: str
    action: str
    argument: str | None = None
    expected: int | None = None
    pace: int = PACE


class Writing:
    """The routes, and those that look at what they did."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def routes(self) -> list[ApiRoute]:
        """All of them."""
        page = [Parameter("before", "The number of the entry before which to go on"), Parameter("limit", "Entries")]
        op, queue, operator = "/api/v1/operations", "/api/v1/queues/{queue:path}", Role.OPERATOR
        return [
            ApiRoute("GET", "/api/v1/audit", self.audit, "Who did what.", list[AuditEntry], parameters=page),
            ApiRoute("GET", op, lambda _: self._admin.operations(), "Bulk operations, newest first.", list[Operation]),
            ApiRoute("GET", f"{op}/{{id}}", self.operation, "A bulk operation.", Operation),
            ApiRoute("POST", op, self.submit, "Start one.", Operation, operator, body=SubmitOperation),
            ApiRoute("POST", f"{op}/{{id}}/cancel", self.cancel, "Stop one.", Operation, operator),
            ApiRoute(
                "POST", "/api/v1/jobs", self.change, "Change jobs.", list[views.Changed], operator, body=ChangeJobs
            ),
            ApiRoute(
                "POST", "/api/v1/jobs/{id}/reveal", self.reveal, "A job, unredacted.", views.JobDetails, operator
            ),
            ApiRoute(
                "POST", f"{queue}/pause", self.pause, "Pause a queue.", views.QueueView | None, operator,
                body=PauseQueue,
            ),
            ApiRoute(
                "POST", f"{queue}/resume", self.resume, "Resume it.", views.QueueView | None, operator,
                body=PauseQueue,
            ),
        ]  # fmt: skip

    async def audit(self, request: Request) -> list[AuditEntry]:
        query = request.query_params
        before = None if "before" not in query else whole(query["before"], "before")
        return await self._admin.audit.entries(before, min(500, whole(query.get("limit", "100"), "limit")))

    async def operation(self, request: Request) -> Operation:
        return await self._admin.operation(request.path_params["id"])

    async def submit(self, request: Request) -> Operation:
        given = await read_body(request, SubmitOperation)
        return await self._admin.submit(
            given.filter,
            given.action,
            given.argument,
            expected=given.expected,
            pace=given.pace,
            actor=principal(request).name,
        )

    async def cancel(self, request: Request) -> Operation:
        who = principal(request).name
        return await self._admin.cancel_operation(request.path_params["id"], actor=who)

    async def change(self, request: Request) -> list[views.Changed]:
        given = await read_body(request, ChangeJobs)
        who = principal(request).name
        return await self._admin.change(given.ids, given.action, given.argument, actor=who)

    async def reveal(self, request: Request) -> views.JobDetails:
        who = principal(request).name
        return await self._admin.job(request.path_params["id"], reveal=True, actor=who)

    async def pause(self, request: Request) -> views.QueueView | None:
        given, queue = await read_body(request, PauseQueue), request.path_params["queue"]
        who = principal(request).name
        await self._admin.pause_queue(queue, given.lasts, tenant=given.tenant, task=given.task, actor=who)
        return await self._queue(queue)

    async def resume(self, request: Request) -> views.QueueView | None:
        given, queue = await read_body(request, PauseQueue), request.path_params["queue"]
        await self._admin.resume_queue(queue, tenant=given.tenant, task=given.task, actor=principal(request).name)
        return await self._queue(queue)

    async def _queue(self, queue: str) -> views.QueueView | None:
        return next(iter(await self._admin.primary.queues(queue)), None)
