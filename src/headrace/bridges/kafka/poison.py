"""Records of which no job can be made: they go to the dead letters, and can be tried again from there."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping

from headrace.api.app import App
from headrace.bridges.kafka.record import Recipe, Record, jobs_of
from headrace.errors import HeadraceError
from headrace.types import Done, Fail, NewJob, Sections
from headrace.worker.job import Job
from headrace.worker.retry import never


class Poison:
    """The task of such records. Its jobs fail with the record's coordinates and the cause; one that is requeued makes
    the jobs of its record if that is possible now."""

    def __init__(self, app: App, name: str, topics: Mapping[str, Recipe]) -> None:
        self._app = app
        self._topics = topics
        self._task = app.task(name=f"{name}:poisoned", sections=["blob"], retry=never())(self._run)

    def job(self, record: Record, error: Exception) -> NewJob:
        """The job of a record that is poisoned."""
        job = self._job(record, error, record.value)
        try:
            self._app.client.packer.pack(job)
        except HeadraceError:  # too large even for this: its coordinates say where it is
            return self._job(record, error, None)
        return job

    def _job(self, record: Record, error: Exception, value: bytes | None) -> NewJob:
        return NewJob(
            task=self._task.name,
            queue=self._task.queue,
            args={
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "size": None if record.value is None else len(record.value),
                "key": _text(record.key),
                "headers": [[name, _text(content)] for name, content in record.headers],
                "error": f"{type(error).__name__}: {error}"[:2_000],
            },
            sections=Sections(blob=value),
            source=record.coordinates,
        )

    async def _run(
        self,
        job: Job[None],
        topic: str,
        partition: int,
        offset: int,
        size: int | None,
        key: str | None,
        headers: list[list[str | None]],
        error: str,
    ) -> Done[None] | Fail:
        value = await job.load("blob")
        record = Record(
            topic,
            partition,
            offset,
            value if value is not None or size != 0 else b"",
            _bytes(key),
            tuple((str(name), _bytes(content)) for name, content in headers),
        )
        if size and value is None:
            return Fail(
                f"record {record.coordinates}: {error}; its {size} bytes were not kept", reason="poisoned record"
            )
        try:
            jobs = jobs_of(record, self._topics[topic])
            for made in jobs:
                self._app.client.packer.pack(made)
        except Exception as again:
            return _failed(record, f"{type(again).__name__}: {again}")
        return Done(spawn=jobs)


def _failed(record: Record, cause: str) -> Fail:
    return Fail(f"record {record.coordinates}: {cause}", reason="poisoned record")


def _text(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
