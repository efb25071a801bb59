"""A violation as a person can follow it: the events of the job concerned, what was broken around it, how to replay."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from headrace.seam.records import JobId
from headrace.testing.sim.history import Event, History, Kind
from headrace.testing.sim.invariants import INVARIANTS
from headrace.testing.sim.verdict import Violation

_encode = msgspec.msgpack.Encoder(order="deterministic", enc_hook=repr).encode
_MOST = 40
_WIDTH = 400
_PRINTABLE = frozenset(range(32, 127))


def tell(history: History, violation: Violation) -> str:
    """What is broken, the events that lead there, and the command that shows it again."""
    lines = [f"{violation.invariant} does not hold: {INVARIANTS[violation.invariant]}", f"  {violation.message}"]
    if violation.job is not None:
        lines.append(f"  job {violation.job.hex()}")
    lines.append(f"  seed {history.seed}{f'; again: {history.replay}' if history.replay else ''}")
    lines.append("")
    return "\n".join([*lines, *(describe(event, history) for event in cut(history, violation))])


def cut(history: History, violation: Violation) -> list[Event]:
    """The events up to the violation that concern its job, and the breakdowns of nodes among them."""
    before = history.events[: violation.seq + 1]
    if violation.job is None:
        return before[-_MOST // 4 :]
    job_id = violation.job
    found = [event for event in before if event.seq == violation.seq or _concerns(event, job_id)]
    first = found[0].seq
    nodes = {event.node for event in found}
    found += [e for e in before[first:] if e.kind is Kind.FAULT and e.node in nodes and e.data is None]
    return sorted(found, key=lambda event: event.seq)[-_MOST:]


def describe(event: Event, history: History) -> str:
    """One event on one line."""
    begin = history.events[0].at
    data = brief(event.data)
    return f"{event.seq:6d} {(event.at - begin) / 1e6:11.6f} s  {event.node:<10} {event.kind:<8} {event.op} {data}"


def brief(data: Any) -> str:
    """Data without what goes without saying."""
    text = _brief(data)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}…"


def _brief(data: Any) -> str:
    match data:
        case None:
            return ""
        case bytes() if len(data) == 16 and not _PRINTABLE.issuperset(data):
            return f"#{data.hex()[-8:]}"
        case Struct():
            fields = zip(data.__struct_fields__, msgspec.structs.astuple(data), _defaults(data), strict=True)
            said = [f"{name}={_brief(value)}" for name, value, default in fields if value != default]
            return f"{type(data).__name__}({', '.join(said)})"
        case dict():
            return "{" + ", ".join(f"{_brief(key)}: {_brief(value)}" for key, value in data.items()) + "}"
        case list() | tuple():
            return f"[{', '.join(map(_brief, data))}]"
        case str():
            return str(data)
        case _:
            return repr(data)


def _defaults(data: Struct) -> list[Any]:
    given = data.__struct_defaults__
    return [object()] * (len(data.__struct_fields__) - len(given)) + list(given)


def _concerns(event: Event, job_id: JobId) -> bool:
    if event.kind is Kind.SNAPSHOT:
        return False
    return job_id in _encode(event.data)
