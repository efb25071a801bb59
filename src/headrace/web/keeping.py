"""Routes for what is not a job: schedules, limits, tenants, retention, the budget and the vault."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict, replace
from starlette.requests import Request

from headrace.admin.admin import Admin
from headrace.admin.redaction import redact
from headrace.core.validation import check_limit
from headrace.errors import ConfigError
from headrace.keeping.janitor import JanitorRun, KeepInfo, UsageInfo
from headrace.limits.policies import PolicyInfo, Rules, TenantInfo
from headrace.schedules.spec import ScheduleInfo
from headrace.text import shown
from headrace.vault.query import Answer
from headrace.vault.vault import VaultFile
from headrace.web.answers import principal
from headrace.web.routes import ApiRoute, Parameter, read_body, whole
from headrace.web.tokens import Role

_MOST = 500
"""Schedules, tenants or runs on a page."""


class Ran(Struct, frozen=True):
    """A job that was stored."""

    job: UUID


class LimitQueue(Struct, forbid_unknown_fields=True):
    """Rules of a queue. What is not named stays as it is, and null removes a rule."""

    running: int | UnsetType | None = UNSET
    rate: str | UnsetType | None = UNSET
    tenant_running: int | UnsetType | None = UNSET
    tenant_rate: str | UnsetType | None = UNSET
    task_rates: dict[str, str] | UnsetType | None = UNSET
    tenant_workers: int | UnsetType | None = UNSET
    tenant_batch: int | UnsetType | None = UNSET
    ageing: str | UnsetType | None = UNSET
    group_running: int | UnsetType | None = UNSET
    depth: int | UnsetType | None = UNSET


class LimitTenant(Struct, forbid_unknown_fields=True):
    """How many jobs of a tenant may run at a time; null: as many as the queue's rules say."""

    queue: str
    tenant: str
    running: int | None


class PauseTenant(Struct, forbid_unknown_fields=True):
    """A tenant in all queues, and for how long; none: until it is resumed."""

    tenant: str
    lasts: str | None = None


class ResumeTenant(Struct, forbid_unknown_fields=True):
    """A tenant in all queues."""

    tenant: str


class RunJanitor(Struct, forbid_unknown_fields=True):
    """``force``: also what a safety stop holds back."""

    force: bool = False


class SetBudget(Struct, forbid_unknown_fields=True):
    """Bytes that the store may take up; null: any number."""

    bytes: int | None


class QueryVault(Struct, forbid_unknown_fields=True):
    """One ``SELECT`` over ended jobs, and how many rows of its answer."""

    sql: str
    most: int = 200


class Keeping:
    """The routes."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._upkeep = admin.upkeep

    def routes(self) -> list[ApiRoute]:
        """All of them."""
        return [*self._reading(), *self._writing()]

    def _reading(self) -> list[ApiRoute]:
        page = [Parameter("after", "The last name of the page before"), Parameter("limit", f"At most {_MOST}")]
        since = [Parameter("since", "ISO 8601"), Parameter("until", "ISO 8601")]
        of_queue = [Parameter("queue", "Their queue", True), *page]
        schedules, janitor = "/api/v1/schedules", "/api/v1/janitor"
        return [
            ApiRoute("GET", schedules, self.schedules, "Schedules by name.", list[ScheduleInfo], parameters=page),
            ApiRoute("GET", f"{schedules}/{{name:path}}", self.schedule, "A schedule.", ScheduleInfo),
            ApiRoute("GET", "/api/v1/limits", self.policies, "Queues that have rules.", list[PolicyInfo]),
            ApiRoute("GET", "/api/v1/limits/{queue:path}", self.policy, "The rules of a queue.", PolicyInfo),
            ApiRoute("GET", "/api/v1/tenants", self.tenants, "Tenants.", list[TenantInfo], parameters=of_queue),
            ApiRoute("GET", f"{janitor}/preview", self.preview, "What a run would delete now.", JanitorRun),
            ApiRoute("GET", f"{janitor}/rules", self.rules, "How long ended jobs are kept.", list[KeepInfo]),
            ApiRoute(
                "GET", f"{janitor}/runs", self.runs, "Runs, newest first.", list[JanitorRun], parameters=page[1:]
            ),
            ApiRoute("GET", "/api/v1/budget", self.usage, "What the store takes up, and may.", UsageInfo),
            ApiRoute("GET", "/api/v1/vault", self.files, "Files of the vault.", list[VaultFile], parameters=since),
        ]  # fmt: skip

    def _writing(self) -> list[ApiRoute]:
        one, tenants, who = "/api/v1/schedules/{name:path}", "/api/v1/tenants", Role.OPERATOR
        return [
            ApiRoute("POST", f"{one}/run", self.run, "Run its job once, now.", Ran, who),
            ApiRoute("POST", f"{one}/pause", self.pause, "Let it fire no more.", ScheduleInfo, who),
            ApiRoute("POST", f"{one}/resume", self.resume, "Let it fire again.", ScheduleInfo, who),
            ApiRoute(
                "POST", "/api/v1/limits/{queue:path}", self.limit, "Set rules of a queue.", PolicyInfo, who,
                body=LimitQueue,
            ),
            ApiRoute("POST", f"{tenants}/limit", self.limit_tenant, "Limit a tenant.", None, who, body=LimitTenant),
            ApiRoute(
                "POST", f"{tenants}/pause", self.pause_tenant, "Pause it; the queues that there are.", list[str], who,
                body=PauseTenant,
            ),
            ApiRoute(
                "POST", f"{tenants}/resume", self.resume_tenant, "Resume it; the queues where it was paused.",
                list[str], who, body=ResumeTenant,
            ),
            ApiRoute(
                "POST", "/api/v1/janitor/run", self.clean, "Delete what is over its bounds.", JanitorRun, who,
                body=RunJanitor,
            ),
            ApiRoute("POST", "/api/v1/budget", self.budget, "Set the budget.", UsageInfo, who, body=SetBudget),
            ApiRoute("POST", "/api/v1/vault/query", self.query, "Ask the vault.", Answer, who, body=QueryVault),
        ]  # fmt: skip

    async def schedules(self, request: Request) -> list[ScheduleInfo]:
        query = request.query_params
        found = await self._upkeep.schedules.list(after=query.get("after"), limit=_limit(request))
        return [self._redacted(one) for one in found]

    async def schedule(self, request: Request) -> ScheduleInfo:
        return self._redacted(await self._upkeep.schedules.get(request.path_params["name"]))

    async def policies(self, request: Request) -> Sequence[PolicyInfo]:
        return await self._upkeep.policies.list()

    async def policy(self, request: Request) -> PolicyInfo:
        return await self._upkeep.policies.get(request.path_params["queue"])

    async def tenants(self, request: Request) -> Sequence[TenantInfo]:
        query = request.query_params
        if "queue" not in query:
            raise ConfigError("expected queue in the query")
        policies = self._upkeep.policies
        return await policies.tenants(query["queue"], after=query.get("after"), limit=_limit(request))

    async def preview(self, request: Request) -> JanitorRun:
        return await self._upkeep.janitor.preview()

    async def rules(self, request: Request) -> list[KeepInfo]:
        return await self._upkeep.janitor.rules()

    async def runs(self, request: Request) -> list[JanitorRun]:
        return await self._upkeep.janitor.log(_limit(request))

    async def usage(self, request: Request) -> UsageInfo:
        return await self._upkeep.janitor.usage()

    async def files(self, request: Request) -> list[VaultFile]:
        return await self._upkeep.vault.files(_instant(request, "since"), _instant(request, "until"))

    async def run(self, request: Request) -> Ran:
        return Ran(await self._upkeep.run_schedule(request.path_params["name"], actor=_who(request)))

    async def pause(self, request: Request) -> ScheduleInfo:
        found = await self._upkeep.pause_schedule(request.path_params["name"], actor=_who(request))
        return self._redacted(found)

    async def resume(self, request: Request) -> ScheduleInfo:
        found = await self._upkeep.resume_schedule(request.path_params["name"], actor=_who(request))
        return self._redacted(found)

    async def limit(self, request: Request) -> PolicyInfo:
        given = asdict(await read_body(request, LimitQueue))
        rules = cast("Rules", {name: value for name, value in given.items() if value is not UNSET})
        return await self._upkeep.limit_queue(request.path_params["queue"], actor=_who(request), **rules)

    async def limit_tenant(self, request: Request) -> None:
        given = await read_body(request, LimitTenant)
        await self._upkeep.limit_tenant(given.queue, given.tenant, given.running, actor=_who(request))

    async def pause_tenant(self, request: Request) -> Sequence[str]:
        given = await read_body(request, PauseTenant)
        return await self._upkeep.pause_tenant(given.tenant, given.lasts, actor=_who(request))

    async def resume_tenant(self, request: Request) -> Sequence[str]:
        given = await read_body(request, ResumeTenant)
        return await self._upkeep.resume_tenant(given.tenant, actor=_who(request))

    async def clean(self, request: Request) -> JanitorRun:
        given = await read_body(request, RunJanitor)
        return await self._upkeep.run_janitor(force=given.force, actor=_who(request))

    async def budget(self, request: Request) -> UsageInfo:
        given = await read_body(request, SetBudget)
        await self._upkeep.set_budget(given.bytes, actor=_who(request))
        return await self._upkeep.janitor.usage()

    async def query(self, request: Request) -> Any:
        given = await read_body(request, QueryVault)
        found = await self._upkeep.query_vault(given.sql, most=min(_MOST, given.most), actor=_who(request))
        return msgspec.to_builtins(found, str_keys=True, enc_hook=str)

    def _redacted(self, schedule: ScheduleInfo) -> ScheduleInfo:
        return replace(schedule, args=redact(schedule.args, self._admin.redaction))


def _who(request: Request) -> str:
    return principal(request).name


def _limit(request: Request) -> int:
    return min(_MOST, check_limit(whole(request.query_params.get("limit", "100"), "limit")))


def _instant(request: Request, name: str) -> datetime | None:
    given = request.query_params.get(name)
    try:
        return None if given is None else datetime.fromisoformat(given)
    except ValueError as error:
        raise ConfigError(
            f"{name}: expected an instant such as 2026-11-19T06:00:00+00:00, got {shown(given)}"
        ) from error
