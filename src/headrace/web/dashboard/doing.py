"""What operators do by clicking. The guard has checked who asks before any of this is called."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.errors import ConfigError, SafetyStop
from headrace.text import shown
from headrace.web.answers import guarded, principal
from headrace.web.dashboard.jobs import shown_job
from headrace.web.dashboard.pages import PageSet, link
from headrace.web.tokens import Role

_PAST = {
    "requeue": "requeued", "cancel": "cancelled", "pause": "paused", "resume": "resumed", "reschedule": "rescheduled",
    "move": "moved", "prioritise": "given another priority", "delete": "deleted",
}  # fmt: skip


class Form:
    """What a form of a page has sent."""

    def __init__(self, body: bytes) -> None:
        self._values: dict[str, list[str]] = parse_qs(
            body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=2_000
        )

    def text(self, name: str) -> str:
        """A value that must be there."""
        if name not in self._values:
            raise ConfigError(f"expected a field {name!r}")
        return self._values[name][0]

    def given(self, name: str) -> str | None:
        """A value as it is, which may be empty; None if there is none."""
        return self._values[name][0] if name in self._values else None

    def maybe(self, name: str) -> str | None:
        """A value; None if there is none, or it is empty."""
        return self._values.get(name, [""])[0].strip() or None

    def several(self, name: str) -> list[str]:
        """All values."""
        return self._values.get(name, [])

    def number(self, name: str) -> int | None:
        """A whole number; None if there is none."""
        given = self.maybe(name)
        if given is None:
            return None
        if not (given.isascii() and given.isdecimal() and len(given) < 16):
            raise ConfigError(f"{name}: expected a whole number, got {shown(given)}")
        return int(given)


Deed = Callable[[Request, Form, str], Awaitable[Response]]


class Doing(PageSet):
    """The routes. Each answers with a sentence for the person who clicked."""

    def routes(self) -> list[Route]:
        """All of them."""
        deeds: dict[str, Deed] = {
            "jobs": self.jobs, "reveal": self.reveal, "bulk": self.bulk, "operation/cancel": self.cancel,
            "queue/pause": self.pause, "queue/resume": self.resume, "queue/limit": self.limit,
            "tenant/limit": self.limit_tenant, "schedule/run": self.run_schedule,
            "schedule/pause": self.pause_schedule, "schedule/resume": self.resume_schedule,
            "janitor/run": self.run_janitor, "store/budget": self.budget, "vault/query": self.query,
        }  # fmt: skip
        return [Route(f"/do/{name}", guarded(Role.OPERATOR, self._done(deed)), methods=["POST"])
                for name, deed in deeds.items()]  # fmt: skip

    def _done(self, deed: Deed) -> Callable[[Request], Awaitable[Response]]:
        async def done(request: Request) -> Response:
            self._live.visit()
            try:
                return await deed(request, Form(await request.body()), principal(request).name)
            except ValueError as error:
                raise ConfigError(f"the form cannot be read: {error}") from error
            finally:
                self._live.changed()

        return done

    async def jobs(self, request: Request, form: Form, who: str) -> Response:
        action, ids = form.text("action"), form.several("id")
        if not ids:
            raise ConfigError("choose some jobs first")
        changed = await self._admin.change(ids, action, form.maybe("argument"), actor=who)
        done = sum(one.changed for one in changed)
        told = f"{_jobs(done)} {_PAST[action]}"
        if left := len(ids) - done:
            told += f"; {_jobs(left)} left as {'it was' if left == 1 else 'they were'}"
        gone = action == "delete" and len(ids) == 1 and done
        return _told(told, go=link(_base(request), "jobs") if gone and form.maybe("alone") else None)

    async def reveal(self, request: Request, form: Form, who: str) -> Response:
        details = await self._admin.job(form.text("id"), reveal=True, actor=who)
        return await self._pages.show(request, "_sections.html", **shown_job(details), revealed=True)

    async def bulk(self, request: Request, form: Form, who: str) -> Response:
        started = await self._admin.submit(
            form.text("filter"),
            form.text("action"),
            form.maybe("argument"),
            expected=form.number("expected"),
            actor=who,
        )
        return _told("the operation has been submitted", go=link(_base(request), f"operation/{started.id}"))

    async def cancel(self, request: Request, form: Form, who: str) -> Response:
        await self._admin.cancel_operation(form.text("id"), actor=who)
        return _told("the operation stops; what it has changed stays changed")

    async def pause(self, request: Request, form: Form, who: str) -> Response:
        queue, tenant = form.text("queue"), form.given("tenant")
        await self._admin.pause_queue(queue, form.maybe("lasts"), tenant=tenant, actor=who)
        return _told(f"{_scope(queue, tenant)} is paused")

    async def resume(self, request: Request, form: Form, who: str) -> Response:
        queue, tenant = form.text("queue"), form.given("tenant")
        await self._admin.resume_queue(queue, tenant=tenant, actor=who)
        return _told(f"{_scope(queue, tenant)} is resumed")

    async def limit(self, request: Request, form: Form, who: str) -> Response:
        queue = form.text("queue")
        await self._admin.upkeep.limit_queue(
            queue,
            actor=who,
            running=form.number("running"),
            tenant_running=form.number("tenant_running"),
            depth=form.number("depth"),
            rate=form.maybe("rate"),
            tenant_rate=form.maybe("tenant_rate"),
        )
        return _told(f"the rules of queue {queue} are stored; workers follow them from their next claim on")

    async def limit_tenant(self, request: Request, form: Form, who: str) -> Response:
        queue, tenant, running = form.text("queue"), form.text("tenant"), form.number("running")
        await self._admin.upkeep.limit_tenant(queue, tenant, running, actor=who)
        most = "as many jobs as the queue's rules say" if running is None else f"{running:,} jobs at a time"
        return _told(f"tenant {tenant} may run {most} in queue {queue}")

    async def run_schedule(self, request: Request, form: Form, who: str) -> Response:
        job: UUID = await self._admin.upkeep.run_schedule(form.text("name"), actor=who)
        return _told(f"job {job} is queued")

    async def pause_schedule(self, request: Request, form: Form, who: str) -> Response:
        await self._admin.upkeep.pause_schedule(form.text("name"), actor=who)
        return _told(f"schedule {form.text('name')} is paused; what is planned already still runs")

    async def resume_schedule(self, request: Request, form: Form, who: str) -> Response:
        await self._admin.upkeep.resume_schedule(form.text("name"), actor=who)
        return _told(f"schedule {form.text('name')} goes on with its next slot")

    async def run_janitor(self, request: Request, form: Form, who: str) -> Response:
        try:
            run = await self._admin.upkeep.run_janitor(force=form.maybe("force") is not None, actor=who)
        except SafetyStop as stop:
            return _told(str(stop), wrong=True)
        return _told(f"{_jobs(run.deleted)} removed")

    async def budget(self, request: Request, form: Form, who: str) -> Response:
        mebibytes = form.number("mebibytes")
        await self._admin.upkeep.set_budget(None if mebibytes is None else mebibytes << 20, actor=who)
        return _told("the store has no budget" if mebibytes is None else f"the budget is {mebibytes:,} MiB")

    async def query(self, request: Request, form: Form, who: str) -> Response:
        found = await self._admin.upkeep.query_vault(form.text("sql"), actor=who)
        return await self._pages.show(request, "_answer.html", found=found)


def _told(sentence: str, *, go: str | None = None, wrong: bool = False) -> Response:
    """What the page tells; then it shows things as they are now, or goes elsewhere."""
    headers = {
        "HX-Trigger": json.dumps({"headrace:told": {"sentence": sentence, "wrong": wrong, "leaves": go is not None}})
    }
    if go is not None:
        headers["HX-Redirect"] = go
    return Response(status_code=200 if go else 204, headers=headers)


def _base(request: Request) -> str:
    base: str = request.scope.get("root_path", "")
    return base


def _jobs(number: int) -> str:
    return f"{number:,} job{'' if number == 1 else 's'}"


def _scope(queue: str, tenant: str | None) -> str:
    return f"queue {queue}" if tenant is None else f"tenant {tenant} in queue {queue}"
