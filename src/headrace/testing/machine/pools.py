"""The pools that arguments are drawn from: small, so that operations meet, and full of what has broken stores before.

Durations are in ticks of the store's time precision; a few ticks here and there make boundaries common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.seam.policy import Rate
from headrace.seam.records import (
    Cancel,
    Change,
    Delete,
    Hold,
    JobId,
    KeyUntil,
    Move,
    Pause,
    Replaces,
    Reprioritise,
    Requeue,
    Reschedule,
    Resume,
    SweepTarget,
    Watch,
)
from headrace.types import SECTIONS, JobState

Pool = Sequence[dict[str, Any]]


def job_id(number: int) -> JobId:
    """A valid id that sorts by its number."""
    return bytes.fromhex(f"0190{number:08x}70008000000000000000")


QUEUES = ("q", "Q", "q:'é/..🙂")
KEYS = ("", "k", "K", "é", "e\u0301", "'; DROP TABLE jobs; --")
HOLDERS = ("h1", "h2", "h%3\\")
IDS = tuple(map(job_id, range(60)))
UNKNOWN = job_id(10_000)
HOUR = 3_600_000_000
_HOSTILE = "u\t\"'%_ тен 🙂"

FLAGS = (False, True)
KEY_UNTIL = tuple(KeyUntil)
REPLACES = (Replaces.NOTHING, *Replaces)
SELDOM = (False, False, False, True)
PAUSES = (0, 0, 0, 0, 0, 1, 2, 10)
STEPS = (1, 1, 2, 3, 5, 10, 1_000, HOUR)
NUDGES = (0, 0, -1, 1)
"""Around an instant at which something happens."""

SOME_KEYS = (None, None, *KEYS[:3])
PRIORITIES = (0, 0, 0, 1, -1, 5, -(2**31), 2**31)
TIMINGS: Pool = (
    {}, {}, {}, {}, {"delay": 1}, {"delay": 3}, {"delay": 10}, {"delay": HOUR}, {"run_at": -5},
    {"run_at": 2, "delay": 9}, {"expires": 0}, {"expires": 2}, {"expires": 10}, {"expires": 3, "delay": 5},
)  # fmt: skip
LOADS: Pool = (
    {"cells": {}},
    {"cells": {"parameters": b"{}"}, "max_attempts": 3},
    {"cells": {"blob": b""}, "headers": b"", "max_attempts": 1},
    {"cells": {"vm_state": b"\x00\xff", "metadata": b"\x00"}, "headers": b"\x81\xa1a\xa1b", "timeout": 0},
    {"cells": {name: name.encode() for name in SECTIONS}, "timeout": 2**52, "result_ttl": 2**52},
    {"cells": {"parameters": b"\x00\x80\n"}, "result_ttl": 0, "max_attempts": 2**31 - 1},
)
TITLES: Pool = (
    {"task": "t"}, {"task": "t"}, {"task": "t", "tenant": "acme"}, {"task": "T", "tenant": "Acme", "reply_to": "in:1"},
    {"task": _HOSTILE, "tenant": _HOSTILE, "reply_to": _HOSTILE}, {"task": "t", "group": "g"},
    {"task": "T", "tenant": "acme", "group": "g"}, {"task": "t", "tenant": "Acme", "group": _HOSTILE},
)  # fmt: skip

FAULTS = ("", "", "", "", "", "", "", "later epoch", "earlier epoch", "other holder", "other job")
ENDS = (
    JobState.COMPLETED, JobState.COMPLETED, JobState.COMPLETED, JobState.AVAILABLE, JobState.AVAILABLE,
    JobState.PAUSED, JobState.CANCELLED, JobState.FAILED, JobState.FAILED,
)  # fmt: skip
DELAYS: Pool = (
    {"delay": None}, {"delay": 0}, {"delay": 0}, {"delay": 1}, {"delay": 5}, {"run_at": -5}, {"run_at": 2, "delay": 9},
)  # fmt: skip
COUNTS: Pool = (
    {}, {"failed_attempt": True}, {"failed_attempt": True, "keep_lost": True}, {"keep_lost": True},
    {"keep_lost": True, "unbegun": True},
)  # fmt: skip
PATCHES: Pool = (
    {}, {}, {}, {}, {"queue": QUEUES[0]}, {"queue": QUEUES[1]}, {"queue": QUEUES[2], "priority": -7},
    {"priority": 2**31}, {"cells": {}}, {"cells": {"blob": b"", "parameters": None}},
    {"cells": {"vm_state": b"\x00", "metadata": None}, "error": b""}, {"error": b"\xff\x00why"},
)  # fmt: skip
RESULTS: Pool = (
    {}, {"result": b"r"}, {"result_ttl": 5}, {"result": b"", "result_ttl": 5}, {"result": b"\x00r", "result_ttl": 3},
    {"result": b"r" * 300, "result_ttl": 10}, {"result": b"r", "result_ttl": HOUR}, {"result_ttl": HOUR},
)  # fmt: skip
REASONS = ("", "boom", "ключ\n")

LINE_UPS: Sequence[tuple[str, ...]] = (
    *[QUEUES] * 5, QUEUES[:1], QUEUES[1:], (QUEUES[2], QUEUES[0], QUEUES[2]), ("nobody's",), (),
)  # fmt: skip
CLAIM_LIMITS = (1, 2, 3, 10, 10, 10, 0)
LEASES = (1, 10, 10, HOUR)
WANTS: Sequence[frozenset[str] | None] = (
    None, None, frozenset(), frozenset({"parameters"}), frozenset({"vm_state", "blob"}), frozenset(SECTIONS),
)  # fmt: skip
LOST_BELOW = (None, None, None, 1, 2)
BEATS: Pool = (
    {}, {"gap": 2}, {"gap": 2, "at_work": 0}, {"at_work": 5}, {"gap": 5, "census": True}, {"queues": QUEUES[1:]},
    {"queues": (), "leaving": True}, {"worker": "pod é", "slots": 8},
)  # fmt: skip
REAPS: Pool = (
    {}, {"limit": 1}, {"limit": 2},
    {"holder": HOLDERS[0], "gap": 5, "steady": 0}, {"holder": HOLDERS[0], "gap": HOUR, "steady": 5},
)  # fmt: skip
SPREADS = (0, 0, 10, HOUR)

NARROWINGS: Pool = (
    {}, {"queue": QUEUES[0]}, {"queue": QUEUES[2]}, {"tenant": ""}, {"tenant": "acme"}, {"task": "t"},
    {"task": _HOSTILE}, {"states": frozenset({JobState.AVAILABLE})}, {"states": frozenset()},
    {"states": frozenset({JobState.RUNNING, JobState.FAILED})}, {"states": frozenset(JobState) - {JobState.PAUSED}},
    {"queue": QUEUES[0], "task": "t", "older_than": 2}, {"older_than": 0}, {"older_than": 5}, {"reason": ""},
    {"reason": "boom"}, {"reason": "expired", "queue": QUEUES[0]},
)  # fmt: skip
CHANGES: Sequence[Change] = (
    Cancel(), Cancel("no\nneed ✂"), Pause(), Resume(), Resume(), Requeue(), *map(Move, QUEUES),
    Reprioritise(-(2**31)), Reprioritise(0), Reschedule(), Reschedule(3), Reschedule(9, -5), Reschedule(0, 5),
    Watch("in:2"), Watch("in:3"), Hold(5), Delete(), Delete(),
)  # fmt: skip
LIMITS = (1, 2, 5, 1_000)

TASKS = ("t", "T", _HOSTILE, "nobody's")
TENANTS = ("", "acme", "Acme", _HOSTILE)
GOVERNED = QUEUES[1:]
"""The first queue never has rules by which it gives out jobs."""
RATES = (None, None, None, Rate(1), Rate(3, 2), Rate(10, 3), Rate(HOUR, 5))
CAPS = (None, None, None, 1, 2, 5)
TASK_RATES: Sequence[dict[str, Rate]] = ({}, {}, {}, {"t": Rate(3, 2)}, {"T": Rate(HOUR, 2), _HOSTILE: Rate(1)})
HOLDER_COUNTS = (None, None, 1, 2)
CHUNKS = (1, 2, 3, None)
AGEINGS = (None, None, 1, 5)
GROUP_TURNS = (1, 1, 2, 3)
DEPTHS = (None, None, None, None, None, None, 20, 8, 0)
VERSIONS = (0, 0, 0, 0, 0, 0, 0, 1, -1)
"""How far off the version of a save is."""
LASTS = (None, 1, 1, 3, 10)

PLACES = (
    SweepTarget.COMPLETED,
    *(place for place in SweepTarget if place not in (SweepTarget.TICKS, SweepTarget.TENANTS)),
)
BOUNDS: Pool = (
    {"older_than": 0}, {"older_than": 2}, {"older_than": 5}, {"max_count": 0}, {"max_count": 1}, {"max_count": 3},
    {"max_count": 2, "older_than": 3}, {"max_bytes": 0}, {"max_bytes": 600}, {"max_bytes": 10**12}, {},
)  # fmt: skip
