"""Traces and metrics by OpenTelemetry's messaging conventions."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from headrace import App, Every, Job, Retry, immediate
from headrace.contrib.otel import instrument
from tests.facades.harness import settings


class Traced:
    """An app under a real SDK, and what it told."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.app = App(settings())
        assert instrument(
            self.app, tracer_provider=self.provider, meter_provider=MeterProvider(metric_readers=[self.reader])
        )
        self.tracer = self.provider.get_tracer("test")

    def spans(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind is kind]

    def numbers(self) -> dict[str, float]:
        data = self.reader.get_metrics_data()
        assert data is not None
        found: dict[str, float] = {}
        for metric in (m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics):
            for point in metric.data.data_points:
                found[metric.name] = found.get(metric.name, 0) + getattr(point, "value", getattr(point, "count", 0))
        return found


@pytest.fixture
def traced() -> Traced:
    return Traced()


def _id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


async def test_a_job_belongs_to_the_trace_that_enqueued_it(traced: Traced) -> None:
    inner: list[Any] = []

    @traced.app.task(queue="mail", name="send")
    async def send(to: str) -> None:
        inner.append(trace.get_current_span().get_span_context())

    async with traced.app:
        with traced.tracer.start_as_current_span("request") as request:
            handle = await send.options(headers={"mine": "kept"}).enqueue("ada")
        info = await handle.info()
        assert info.headers["mine"] == "kept"
        assert "traceparent" in info.headers
        await traced.app.drain()
    [sent], [ran] = traced.spans(SpanKind.PRODUCER), traced.spans(SpanKind.CONSUMER)
    assert sent.parent is not None
    assert ran.parent is not None
    assert sent.parent.span_id == request.get_span_context().span_id
    assert ran.parent.span_id == _id(sent)
    assert inner[0].span_id == _id(ran)
    assert (sent.name, ran.name) == ("enqueue mail", "run mail")
    attributes = dict(ran.attributes or {})
    assert attributes["messaging.system"] == "headrace"
    assert attributes["messaging.destination.name"] == "mail"
    assert (attributes["messaging.operation.type"], attributes["messaging.operation.name"]) == ("process", "run")
    assert attributes["messaging.message.id"] == str(handle.id)
    numbers = traced.numbers()
    assert numbers["messaging.client.sent.messages"] == 1
    assert numbers["messaging.client.consumed.messages"] == 1
    assert numbers["messaging.process.duration"] == 1
    assert numbers["messaging.client.operation.duration"] == 3, "enqueue, claim, ack"


async def test_retries_and_failures_are_linked_and_marked(traced: Traced) -> None:
    @traced.app.task(queue="pay", name="charge", retry=immediate(3))
    async def charge(job: Job[Any]) -> Retry | None:
        if job.attempt == 0:
            raise ValueError("no card")
        return Retry(after=0) if job.attempt == 1 else None

    async with traced.app:
        await charge.enqueue()
        await traced.app.drain()
    [sent] = traced.spans(SpanKind.PRODUCER)
    first, second, third = traced.spans(SpanKind.CONSUMER)
    assert first.parent is not None
    assert not first.links
    for again in (second, third):
        assert again.parent is None
        assert [link.context.span_id for link in again.links] == [_id(sent)]
    assert [span.status.status_code for span in (first, second, third)] == [
        StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET
    ]  # fmt: skip
    assert [dict(span.attributes or {}).get("error.type") for span in (first, second, third)] == [
        "ValueError", "Retry", None
    ]  # fmt: skip
    assert [event.name for event in first.events] == ["exception"]
    assert [dict(span.attributes or {})["headrace.attempt"] for span in (first, second, third)] == [1, 2, 3]


async def test_batches_and_schedules_are_linked(traced: Traced) -> None:
    @traced.app.batch(queue="bulk", name="many", size=10)
    async def many(jobs: list[Job[Any]]) -> None: ...

    async with traced.app:
        await traced.app.enqueue_many([many.job({"n": n}) for n in range(3)])
        await traced.app.drain()
    [sent] = traced.spans(SpanKind.PRODUCER)
    assert dict(sent.attributes or {})["messaging.batch.message_count"] == 3
    ran = traced.spans(SpanKind.CONSUMER)
    assert len(ran) == 3
    assert all(span.parent is None and span.links[0].context.span_id == _id(sent) for span in ran)


async def test_a_job_without_context_begins_a_trace(traced: Traced) -> None:
    plain = App(traced.app.client.sibling())

    @traced.app.task(queue="mail", name="send")
    async def send() -> None: ...

    remote = plain.task(queue="mail", name="send")(send.function)
    async with traced.app, plain:
        await remote.enqueue()
        await remote.options(headers={"traceparent": "garbage"}).enqueue()
        await traced.app.drain()
    first, second = traced.spans(SpanKind.CONSUMER)
    assert first.parent is None
    assert second.parent is None
    assert not first.links
    assert not second.links


async def test_claims_and_settlements_have_spans_that_link_to_their_jobs(traced: Traced) -> None:
    @traced.app.task(queue="mail", name="send", retry=immediate(2))
    async def send(job: Job[Any]) -> None:
        if job.attempt == 0:
            raise ValueError("again")

    async with traced.app:
        await traced.app.enqueue_many([send.job() for _ in range(3)])
        await send.enqueue()
        await traced.app.drain()
    sent = {_id(span) for span in traced.spans(SpanKind.PRODUCER)}
    trips = [(span, dict(span.attributes or {})) for span in traced.spans(SpanKind.CLIENT)]
    for operation, kind in (("claim", "receive"), ("ack", "settle")):
        mine = [(span, of) for span, of in trips if of["messaging.operation.name"] == operation]
        assert {of["messaging.operation.type"] for _, of in mine} == {kind}
        assert {span.name for span, _ in mine} == {f"{operation} mail"}
        assert sum(int(str(of["messaging.batch.message_count"])) for _, of in mine) == 8, "four jobs, twice each"
        assert {link.context.span_id for span, _ in mine for link in span.links} == sent
        for span, _ in mine:
            assert span.parent is None
            assert span.start_time is not None
            assert span.end_time is not None
            assert span.start_time <= span.end_time
    assert traced.numbers()["messaging.client.operation.duration"] == len(trips) + 2


async def test_slots_are_linked_to_the_trace_that_their_job_names(traced: Traced) -> None:
    """The definition of a schedule stays the same whoever puts it, so it has no context of its own."""

    @traced.app.task(queue="mail", name="send")
    async def send() -> None: ...

    async with traced.app:
        headers: dict[str, str] = {}
        with traced.tracer.start_as_current_span("request") as request:
            propagate.inject(headers)
            await traced.app.schedules.put(Every("1h", send.options(headers=headers).job(), name="linked"))
            await traced.app.schedules.put(Every("1h", send.job(), name="plain"))
        await traced.app.schedules.run("linked")
        await traced.app.schedules.run("plain")
        await traced.app.drain()
    by_links = sorted(traced.spans(SpanKind.CONSUMER), key=lambda span: len(span.links))
    assert [[link.context.span_id for link in span.links] for span in by_links] == [
        [], [request.get_span_context().span_id]
    ]  # fmt: skip
    assert all(span.parent is None for span in by_links)


def test_without_an_sdk_nothing_is_changed() -> None:
    app = App(settings())
    assert not instrument(app)
    assert app.client.sending is None
    assert app.client.observers.travelled is None


def test_without_the_package_nothing_is_imported() -> None:
    code = "import sys, headrace; headrace.App('memory://'); print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
