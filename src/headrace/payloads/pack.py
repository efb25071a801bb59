"""Pack and unpack: from ``NewJob`` to ``Row``, and from a leased cell back to a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from headrace.core.config import PayloadSettings
from headrace.core.durations import LONGEST, micros
from headrace.core.headers import SOURCE
from headrace.core.ids import IdMaker
from headrace.core.names import check_name, check_queue
from headrace.core.numbers import check_whole
from headrace.errors import CodecError, InvalidJob, PayloadMissing, PayloadTooLarge
from headrace.payloads.codec import JSON, RAW, Envelope, JsonSerde, Serde
from headrace.payloads.offload import LARGE
from headrace.payloads.section_sizes import SectionSizes
from headrace.seam.instants import from_datetime
from headrace.seam.records import Cells, KeyUntil, Leased, Limits, Replaces, Row
from headrace.text import shown
from headrace.types import NO_SECTIONS, Duration, Encoded, NewJob, Patch, Sections

T = TypeVar("T")

_HEADERS = msgspec.msgpack.Encoder()
_MAX_HEADERS = 8_192
_NAMES_KEPT = 10_000
_MOST = 2**31 - 1
_AROUND = 128
"""More than envelope and seal add to a body."""
_ANY = JsonSerde[Any]()
_OPTIONS = slice(NewJob.__struct_fields__.index("key"), NewJob.__struct_fields__.index("id"))
_NO_OPTIONS = msgspec.structs.astuple(NewJob(task=""))[_OPTIONS]
"""What lies between a job's payload and its id, if nothing of it was given."""
_whole = partial(check_whole, error=InvalidJob)


class Packer:
    """Turns what users hand in into rows, refusing what no store should see."""

    seals = False
    """Whether there are keys. If so, ``pack_all`` is for the event loop, and ``pack`` for elsewhere."""

    def __init__(self, settings: PayloadSettings, limits: Limits, ids: IdMaker) -> None:
        self._ids = ids
        self.new_id: Callable[[], bytes] = ids.new
        """Makes an id for a new job."""
        self._limits = limits
        self._name = _remembering(check_name)
        self._queue = _remembering(check_queue)
        size = min(settings.max_size, limits.max_cell - _AROUND)
        self.sizes = SectionSizes()
        """What was packed here so far."""
        self.envelope = Envelope(
            max_size=size,
            compress_over=settings.compress_over,
            as_it_is=settings.compress.left_out,
            sizes=self.sizes,
        )
        self._uncompressed = Envelope(max_size=size, compress_over=None)

    def instant(self, value: object, what: str) -> int:
        """The instant of a datetime, if a job may be due then."""
        return _instant(value, self._ids.clock.now(), what)

    def pack(self, job: NewJob, reply_to: str | None = None) -> Row:
        """The row for a new job. Raises before anything is stored."""
        if not isinstance(job, NewJob):
            raise InvalidJob(f"expected a NewJob, got {type(job).__name__}; make one with task.job(…)")
        if msgspec.structs.astuple(job)[_OPTIONS] == _NO_OPTIONS and type(job.priority) is int:
            # Most jobs. The long way would take twice as long.
            queue, task = self._queue(job.queue, "queue"), self._name(job.task, "task")
            return Row(self._id(job.id), queue, task, self._cells(job), reply_to=reply_to)
        if job.run_at is not None and job.delay is not None:
            raise InvalidJob("expected run_at or delay, got both")
        if job.on_failed not in ("run", "return"):
            raise InvalidJob(f"on_failed: expected 'run' or 'return', got {shown(job.on_failed)}")
        if job.when_full not in ("raise", "block"):
            raise InvalidJob(f"when_full: expected 'raise' or 'block', got {shown(job.when_full)}")
        if job.overflow is not None:
            self._queue(job.overflow, "overflow")
            if job.overflow == job.queue:
                raise InvalidJob(f"overflow: expected a queue other than the job's own, got {shown(job.overflow)}")
        key_until, result_ttl = _uniqueness(job)
        return Row(
            id=self._id(job.id),
            queue=self._queue(job.queue, "queue"),
            task=self._name(job.task, "task"),
            cells=self._cells(job),
            tenant=job.tenant if job.tenant == "" else self._name(job.tenant, "tenant"),
            key=None if job.key is None else check_name(job.key, "key", empty=True),
            priority=self.priority(job.priority),
            delay=0 if job.delay is None else _length(job.delay, "delay"),
            run_at=None if job.run_at is None else self.instant(job.run_at, "run_at"),
            expires=None if job.expires is None else _length(job.expires, "expires"),
            max_attempts=None if job.max_attempts is None else _whole(job.max_attempts, "max_attempts", 1, _MOST),
            timeout=None if job.timeout is None else _length(job.timeout, "timeout"),
            result_ttl=result_ttl,
            headers=None if job.headers is None and job.source is None else _headers(job.headers, job.source),
            reply_to=reply_to,
            hold_failed=job.on_failed == "return",
            key_until=key_until,
            group=None if job.group is None else check_name(job.group, "group"),
            replaces=Replaces.NOTHING if job.on_duplicate == "keep" else _replaces(job),
        )

    async def pack_all(self, jobs: Iterable[NewJob], reply_to: str | None = None) -> list[Row]:
        """The rows of these jobs. If there is something large to seal, a thread does it, beside the event loop."""
        return [self.pack(job, reply_to) for job in jobs]

    def pack_template(self, job: NewJob) -> Row:
        """The row that a schedule takes its template from. It stands for many jobs, whose ids are not known yet."""
        return self.pack(job)

    def priority(self, given: object) -> int:
        """The priority, if the store can take it."""
        low, high = self._limits.min_priority, self._limits.max_priority
        if not isinstance(given, int) or isinstance(given, bool) or not low <= given <= high:
            raise InvalidJob(f"priority: expected a whole number from {low} to {high}, got {shown(given)}")
        return given

    def patch(self, patch: Patch, job_id: bytes, tenant: str) -> dict[str, bytes | None]:
        """The cells that a patch changes in this job."""
        return {name: None if body is None else self._wrap(body, name) for name, body in _changes(patch.sections)}

    def wrap_result(self, value: T, serde: Serde[T], job_id: bytes) -> bytes | None:
        """A cell with a handler's result; None for JSON's null, which is what most return. A large result is neither
        compressed nor sealed yet: that is for ``compress``, or at least for ``seal_result``."""
        if value is None and serde.kind == JSON and getattr(serde, "takes_none", True):
            return None
        body = self.encode(value, serde, "result")
        return (self.envelope if len(body) <= LARGE else self._uncompressed).wrap(body, serde.kind, "result", "result")

    def seal_result(self, cell: bytes, job_id: bytes) -> bytes:
        """The same result sealed, if there are keys."""
        return cell

    def compress(self, cell: bytes, job_id: bytes) -> bytes:
        """The same result compressed, if that makes it smaller, and sealed; callable from any thread."""
        kind, body = self._uncompressed.unwrap(cell, "result")
        return self.envelope.wrap(body, kind, "result", "result")

    def wrap_value(self, value: T, serde: Serde[T], what: str) -> bytes:
        """A cell that holds an encoded value."""
        return self.envelope.wrap(self.encode(value, serde, what), serde.kind, what)

    def encode(self, value: T, serde: Serde[T], what: str) -> bytes:
        """The value as bytes, without an envelope."""
        try:
            if isinstance(serde, JsonSerde):
                return serde.encode(value, self.envelope.max_size)
            return serde.encode(value)
        except CodecError:
            raise
        except Exception as error:
            raise CodecError(f"{what}: cannot encode {type(value).__name__}: {error}") from error

    def sections(self, leased: Leased) -> dict[str, bytes]:
        """The bytes of all sections but ``parameters``."""
        return {
            name: self.envelope.unwrap(cell, name, leased.id, leased.tenant)[1]
            for name, cell in leased.cells.items()
            if name != "parameters"
        }

    def decode(self, leased: Leased, serde: Serde[T]) -> T:
        """The value in a job's ``parameters`` section."""
        cell = leased.cells.get("parameters")
        if cell is None:
            raise PayloadMissing("the job has no parameters section; it was enqueued without arguments")
        return self.envelope.decode(cell, serde, "parameters", leased.id, leased.tenant)

    def with_ids(self, jobs: Iterable[NewJob]) -> list[NewJob]:
        """The same jobs with ids, so that to store them again stores nothing twice."""
        return [msgspec.structs.replace(job, id=UUID(bytes=self.new_id())) if job.id is None else job for job in jobs]

    def _id(self, given: object) -> bytes:
        if isinstance(given, bytes) and len(given) == 16:
            return given
        if given is None:
            return self.new_id()
        if not isinstance(given, UUID):
            raise InvalidJob(f"id: expected a UUID or None, got {type(given).__name__} {shown(given)}")
        return given.bytes

    def _cells(self, job: NewJob) -> Cells:
        if job.sections is NO_SECTIONS and isinstance(job.args, Encoded):
            return {"parameters": self._encoded(job.args)}
        cells: Cells = {}
        for name, body in _changes(job.sections):
            if body is not None:
                cells[name] = self._wrap(body, name)
        if job.args is not None:
            if "parameters" in cells:
                raise InvalidJob("expected args or a parameters section, got both")
            if isinstance(job.args, Encoded):
                cells["parameters"] = self._encoded(job.args)
            elif isinstance(job.args, Mapping):
                cells["parameters"] = self.wrap_value(job.args, _ANY, "args")
            else:
                raise InvalidJob(f"args: expected a mapping of argument names, got {type(job.args).__name__}")
        return cells

    def _encoded(self, args: Encoded) -> bytes:
        cell: object = args.cell
        if not isinstance(cell, bytes):
            raise InvalidJob(f"args: expected bytes in Encoded(…), got {type(cell).__name__}; task.job(…) makes them")
        if len(cell) > self._limits.max_cell:
            raise PayloadTooLarge(f"args: expected at most {self._limits.max_cell} bytes, got {len(cell)}")
        return cell

    def _wrap(self, body: object, name: str) -> bytes:
        if not isinstance(body, bytes):
            raise InvalidJob(f"section {name}: expected bytes, got {type(body).__name__}")
        return self.envelope.wrap(body, RAW, name, name)


_UNIQUE = {"until done": KeyUntil.ENDED, "while pending": KeyUntil.STARTED}


def _uniqueness(job: NewJob) -> tuple[KeyUntil, int | None]:
    """Until when the key of another job counts, and how long this one keeps its own, and its result."""
    result_ttl = None if job.result_ttl is None else _length(job.result_ttl, "result_ttl")
    unique = job.unique
    if unique is None:
        return KeyUntil.KEPT, result_ttl
    if job.key is None:
        raise InvalidJob(f"unique: expected a key beside it, got none; give one: options(key=…, unique={unique!r})")
    if unique in ("until done", "while pending"):
        return _UNIQUE[str(unique)], result_ttl
    try:
        kept = _length(unique, "unique")
    except InvalidJob as error:
        raise InvalidJob(
            f"unique: expected 'while pending', 'until done', or a time like '10m', got {shown(unique)}"
        ) from error
    if result_ttl is not None and result_ttl != kept:
        raise InvalidJob("expected unique for a time, or result_ttl, got both: a key is kept for as long as the result")
    return KeyUntil.KEPT, kept


_REPLACES = {"replace": Replaces.BOTH, "replace arguments": Replaces.CELLS, "replace time": Replaces.TIME}


def _replaces(job: NewJob) -> Replaces:
    """What the job replaces of one that waits under its key."""
    replaces = _REPLACES.get(job.on_duplicate) if isinstance(job.on_duplicate, str) else None
    if replaces is None:
        expected = "'keep', 'replace', 'replace arguments' or 'replace time'"
        raise InvalidJob(f"on_duplicate: expected {expected}, got {shown(job.on_duplicate)}")
    if job.key is None:
        raise InvalidJob("on_duplicate: expected a key beside it, got none; give one: options(key=…, on_duplicate=…)")
    return replaces


def _changes(sections: Sections) -> list[tuple[str, Any]]:
    if not isinstance(sections, Sections):
        raise InvalidJob(f"sections: expected Sections(…), got {type(sections).__name__}")
    return list(sections.changes().items())


def _remembering(check: Callable[[str, str], str]) -> Callable[[str, str], str]:
    """Names of queues, tasks and tenants come again and again: the check remembers those that passed it."""
    good: set[str] = set()

    def checked(name: str, what: str) -> str:
        try:
            if name in good:
                return name
        except TypeError:  # not hashable
            pass
        check(name, what)
        if len(good) >= _NAMES_KEPT:
            good.clear()
        good.add(name)
        return name

    return checked


def _length(value: Duration, what: str) -> int:
    try:
        return micros(value, what)
    except ValueError as error:
        raise InvalidJob(str(error)) from None


def _instant(value: object, now: int, what: str) -> int:
    if not isinstance(value, datetime):
        raise InvalidJob(f"{what}: expected a datetime with a time zone, got {type(value).__name__}")
    try:
        aware = value.utcoffset() is not None
        instant = from_datetime(value) if aware else 0
    except Exception as error:
        raise InvalidJob(f"{what}: {shown(value)} cannot be read: {error}") from None
    if not aware:
        raise InvalidJob(f"{what}: {value} has no time zone; use datetime.now(UTC), or .astimezone() for local time")
    if not 0 <= instant <= now + LONGEST:
        raise InvalidJob(f"{what}: expected a date after 1970 and at most ten years from now, got {value}")
    return instant


def _headers(given: Mapping[str, str] | None, source: str | None) -> bytes:
    given = {} if given is None else given
    if not isinstance(given, Mapping) or not all(isinstance(x, str) for pair in given.items() for x in pair):
        raise InvalidJob(f"headers: expected a mapping of strings to strings, got {shown(given)}")
    if ours := next((name for name in given if name.startswith("headrace-")), None):
        raise InvalidJob(f"headers: names that begin with headrace- are reserved, got {shown(ours)}")
    try:
        more = {} if source is None else {SOURCE: check_name(source, "source")}
        packed = _HEADERS.encode(dict(given) | more)
    except ValueError as error:
        raise InvalidJob(f"headers: {error}") from None
    if len(packed) > _MAX_HEADERS:
        raise InvalidJob(f"headers: expected at most {_MAX_HEADERS} bytes, got {len(packed)}")
    return packed
