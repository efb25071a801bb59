"""OpenTelemetry: spans and metrics of jobs by the messaging conventions, and context that travels with a job.

The conventions are still in development, so all their names are in this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter, time_ns
from typing import Any
from uuid import UUID

from msgspec.structs import replace
from opentelemetry import context, metrics, propagate, trace
from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.trace import Link, NoOpTracerProvider, Span, SpanKind, Status, StatusCode, TracerProvider

from headrace.api.app import App
from headrace.api.batch import BatchTask
from headrace.core.headers import read_headers
from headrace.seam.records import Leased
from headrace.types import Encoded, Fail, NewJob, Outcome, Retry
from headrace.worker.job import Job
from headrace.worker.middleware import Next

SYSTEM, QUEUE, OPERATION, KIND = (
    "messaging.system",
    "messaging.destination.name",
    "messaging.operation.name",
    "messaging.operation.type",
)
MESSAGE, COUNT, SIZE, GROUP = (
    "messaging.message.id",
    "messaging.batch.message_count",
    "messaging.message.body.size",
    "messaging.consumer.group.name",
)
ERROR, TASK, ATTEMPT, TENANT = "error.type", "headrace.task", "headrace.attempt", "headrace.tenant"
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Of durations, as the conventions list them."""
_LINKS = 100
"""Jobs of one trip that are linked to."""
_LATER = 60.0
"""Seconds. What ran longer ago is linked to, as the trace of what caused it has ended by then."""


def instrument(
    app: App, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> bool:
    """Trace and measure the jobs of an app, with the providers given or the global ones. Call it once, when the SDK has
    been set up. Where no SDK is, nothing is changed and nothing costs anything; returns whether one is.

    >>> instrument(App("memory://"))  # no SDK here
    False
    """
    tracing = tracer_provider or trace.get_tracer_provider()
    metering = meter_provider or metrics.get_meter_provider()
    traces = not isinstance(tracing, trace.ProxyTracerProvider | NoOpTracerProvider)
    measures = not isinstance(metering, NoOpMeterProvider) and type(metering).__name__ != "_ProxyMeterProvider"
    if not (traces or measures):
        return False
    telemetry = _Telemetry(app, tracing, metering)
    app.client.sending = telemetry.sending
    app.client.observers.travelled = telemetry.travelled
    app.middleware(telemetry.process)
    return True


class _Telemetry:
    def __init__(self, app: App, tracing: TracerProvider, metering: MeterProvider) -> None:
        self._app = app
        self._tracer = tracing.get_tracer("headrace")
        meter = metering.get_meter("headrace")
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Jobs enqueued.")
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}", "Jobs run.")
        histogram = partial(meter.create_histogram, unit="s", explicit_bucket_boundaries_advisory=BOUNDS)
        words = "How long enqueues, claims and settlements took."
        self._operations = histogram("messaging.client.operation.duration", description=words)
        self._ran = histogram("messaging.process.duration", description="How long handlers ran.")

    @contextmanager
    def sending(self, jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
        """The jobs with the context of the span that encloses their enqueue."""
        began = perf_counter()
        queues = {job.queue for job in jobs}
        named = {SYSTEM: "headrace", OPERATION: "enqueue", KIND: "send"}
        if len(queues) == 1:
            named[QUEUE] = next(iter(queues))
        about: dict[str, Any] = {**named, **_about(jobs)}
        name = f"enqueue {named[QUEUE]}" if QUEUE in named else "enqueue"
        with self._tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=about) as span:
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            failed: dict[str, str] = {}
            try:
                yield [replace(job, headers={**carrier, **(job.headers or {})}) for job in jobs] if carrier else [*jobs]
            except BaseException as error:
                failed = {ERROR: type(error).__qualname__}
                _failed(span, failed[ERROR], error)
                raise
            finally:
                self._sent.add(len(jobs), {**named, **failed})
                self._operations.record(perf_counter() - began, {**named, **failed})

    async def process(self, job: Job[Any], next: Next) -> Outcome:
        """Middleware: a span around each run."""
        began = perf_counter()
        named = {SYSTEM: "headrace", QUEUE: job.queue, OPERATION: "run", KIND: "process"}
        about: dict[str, Any] = {
            **named,
            MESSAGE: str(job.id),
            GROUP: job.task,
            TASK: job.task,
            ATTEMPT: job.attempt + 1,
        }
        if job.tenant:
            about[TENANT] = job.tenant
        parent, links = self._cause(job)
        failed: dict[str, str] = {}
        start = partial(self._tracer.start_as_current_span, record_exception=False, set_status_on_exception=False)
        with start(f"run {job.queue}", parent, SpanKind.CONSUMER, about, links) as span:
            try:
                outcome = await next(job)
                if isinstance(outcome, Fail | Retry):
                    failed = {ERROR: type(outcome).__name__}
                    _failed(span, failed[ERROR])
                return outcome
            except BaseException as error:
                failed = {ERROR: type(error).__qualname__}
                _failed(span, failed[ERROR], error)
                raise
            finally:
                self._consumed.add(1, {**named, **failed})
                self._ran.record(perf_counter() - began, {**named, **failed})

    def travelled(self, settled: Sequence[Leased], claimed: Sequence[Leased], seconds: float) -> None:
        """A trip of a worker or a pull: a span for what it settled, and one for what it brought. A trip that brought
        nothing has none, or an idle worker would tell of it for ever."""
        end = time_ns()
        for jobs, operation, kind in ((settled, "ack", "settle"), (claimed, "claim", "receive")):
            if not jobs:
                continue
            queues = {job.queue for job in jobs}
            named = {SYSTEM: "headrace", OPERATION: operation, KIND: kind}
            if len(queues) == 1:
                named[QUEUE] = jobs[0].queue
            about: dict[str, Any] = {**named, COUNT: len(jobs)}
            if len(jobs) == 1:
                about |= {MESSAGE: str(UUID(bytes=jobs[0].id)), TASK: jobs[0].task}
            name = f"{operation} {named[QUEUE]}" if QUEUE in named else operation
            start = end - int(seconds * 1e9)
            links = _links(jobs)
            self._tracer.start_span(name, context.Context(), SpanKind.CLIENT, about, links, start).end(end)
            self._operations.record(seconds, named)

    def _cause(self, job: Job[Any]) -> tuple[context.Context, list[Link]]:
        """What enqueued the job: the parent of a single job that runs soon, at its first attempt; for retries, batches,
        slots of schedules and what waited for long, a link."""
        came = propagate.extract(job.headers, context.Context())
        cause = trace.get_current_span(came).get_span_context()
        if not cause.is_valid:
            return came, []
        waited = (job.run_at - job.enqueued_at).total_seconds()
        batched = isinstance(self._app.tasks.get(job.task), BatchTask)
        if job.attempt or job.lost or batched or job.slot is not None or waited > _LATER:
            return trace.set_span_in_context(trace.INVALID_SPAN, came), [Link(cause)]
        return came, []


def _links(jobs: Sequence[Leased]) -> list[Link]:
    """To what enqueued the jobs."""
    found = (_origin(read_headers(job.headers)) for job in jobs[:_LINKS] if job.headers is not None)
    return [Link(one) for one in {(one.trace_id, one.span_id): one for one in found}.values() if one.is_valid]


def _origin(headers: Mapping[str, str]) -> trace.SpanContext:
    return trace.get_current_span(propagate.extract(headers, context.Context())).get_span_context()


def _about(jobs: Sequence[NewJob]) -> dict[str, Any]:
    if len(jobs) != 1:
        return {COUNT: len(jobs)}
    [job] = jobs
    about: dict[str, Any] = {TASK: job.task, GROUP: job.task}
    if job.job_id is not None:
        about[MESSAGE] = str(job.job_id)
    if isinstance(job.args, Encoded):
        about[SIZE] = len(job.args.cell)
    return about


def _failed(span: Span, kind: str, error: BaseException | None = None) -> None:
    span.set_attribute(ERROR, kind)
    span.set_status(Status(StatusCode.ERROR, kind))
    if isinstance(error, Exception):
        span.record_exception(error)
