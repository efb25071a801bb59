"""Pages of the admin to look at jobs, dead letters, queues and schedules. Nothing can be changed there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.timezone import localtime

from headrace.admin.redaction import Redaction, redact
from headrace.api.info import JobInfo
from headrace.contrib.django import models
from headrace.contrib.django.transactions import jobs
from headrace.errors import HeadraceError, JobNotFound
from headrace.seam.instants import to_datetime
from headrace.seam.records import Selector
from headrace.types import JobState

_SHOWN = 100


class ReadOnlyPages(admin.ModelAdmin):
    """A list, asked of the store, for everyone with the right to view it."""

    columns: Sequence[str] = ()
    filters: Sequence[str] = ()

    def rows(self, given: dict[str, str]) -> Iterable[Sequence[Any]]:
        """The lines of the list."""
        raise NotImplementedError

    def has_add_permission(self, request: HttpRequest, *more: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, *more: Any) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, *more: Any) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list."""
        self._check(request)
        given = {name: value for name in self.filters if (value := request.GET.get(name, "").strip())}
        try:
            rows = [list(row) for row in self.rows(given)]
        except HeadraceError as error:
            messages.error(request, str(error))
            rows = []
        filters = [(name, given.get(name, "")) for name in self.filters]
        meta = self.model._meta
        return self._page(request, "list", str(meta.verbose_name_plural), columns=self.columns, rows=rows,
                          filters=filters, most=_SHOWN)  # fmt: skip

    def _page(self, request: HttpRequest, page: str, title: str, **more: Any) -> HttpResponse:
        context = self.admin_site.each_context(request) | {"title": title.capitalize(), "opts": self.model._meta}
        return TemplateResponse(request, f"headrace/{page}.html", context | more)

    def _check(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied


@admin.register(models.Job)
class JobPages(ReadOnlyPages):
    """Jobs, newest first, and each of them in full, but for what sounds secret."""

    columns = ("id", "task", "queue", "state", "failed attempts", "due", "ended")
    filters = ("task", "queue", "state", "tenant")
    states: frozenset[JobState] | None = None

    def rows(self, given: dict[str, str]) -> Iterable[Sequence[Any]]:
        """The newest jobs that match."""
        named: dict[str, Any] = {name: value for name, value in given.items() if name != "state"}
        states = self.states
        if "state" in given:
            states = frozenset(state for state in JobState if state.value == given["state"])
        found = jobs().list_jobs(Selector(states=states, **named), _SHOWN)
        at = to_datetime(jobs().app.client.clock.now())
        return [
            (_link(job.id), job.task, job.queue, job.seen_state(at), job.attempt, _local(job.run_at), _end(job))
            for job in found
        ]

    def change_view(self, request: HttpRequest, object_id: str, *more: Any, **given: Any) -> HttpResponse:
        """One job: everything the store knows, and why it does not run."""
        self._check(request)
        try:
            job = jobs().get(UUID(object_id))
            why = "" if job.state.terminal else jobs().why(job.id).sentence
        except (ValueError, JobNotFound):
            raise Http404(f"no job {object_id}") from None
        except HeadraceError as error:
            messages.error(request, str(error))
            return self._page(request, "job", f"job {object_id}", fields=[], failures=[], why="")
        shown = redact(job.to_dict(), Redaction.SECRETS)
        fields = [(name, value) for name, value in shown.items() if name != "failures"]
        return self._page(request, "job", f"job {job.id}", fields=fields, failures=job.failures, why=why)


@admin.register(models.DeadLetter)
class DeadLetterPages(JobPages):
    """Jobs that failed for good."""

    filters = ("task", "queue", "tenant", "reason")
    states = frozenset({JobState.FAILED})


@admin.register(models.Queue)
class QueuePages(ReadOnlyPages):
    """Queues in numbers."""

    columns = ("queue", "waiting", "of them later", "running", "paused", "completed", "cancelled", "dead letters")

    def rows(self, given: dict[str, str]) -> Iterable[Sequence[Any]]:
        """All queues."""
        return [
            (one.queue, one.available, one.scheduled, one.running, "yes" if one.paused else one.jobs_paused or "",
             one.completed, one.cancelled, one.failed)
            for one in jobs().stats().queues
        ]  # fmt: skip


@admin.register(models.Schedule)
class SchedulePages(ReadOnlyPages):
    """Schedules, by name."""

    columns = ("name", "rule", "time zone", "task", "queue", "enabled", "last slot", "next slot", "planned")
    filters = ("queue", "tenant")

    def rows(self, given: dict[str, str]) -> Iterable[Sequence[Any]]:
        """The first schedules that match."""
        app = jobs().app
        found = jobs().wait_for(app.schedules.list(**given, limit=_SHOWN))
        return [
            (one.name, one.rule, one.tz, one.task, one.queue, "yes" if one.enabled else "no", _local(one.last_slot),
             _local(one.next_slot), one.runs)
            for one in found
        ]  # fmt: skip


def _link(job_id: UUID) -> Any:
    return format_html('<a href="{}">{}</a>', reverse("admin:headrace_job_change", args=[job_id]), job_id)


def _local(instant: Any) -> Any:
    return "" if instant is None else f"{localtime(instant):%Y-%m-%d %H:%M:%S}"


def _end(job: JobInfo) -> str:
    return f"{_local(job.finished_at)} {job.reason}".strip()
