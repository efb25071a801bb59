"""What a pair of statements meets: jobs in every state, each with its key and somebody who waits for it.

A *strand* is what hangs together: a job and all that share its key, whatever queue they are in. Strands have nothing to
do with each other, so each may have its own order of events. Every id tells which strand it belongs to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from headrace.seam.policy import QueuePause
from headrace.seam.protocol import Backend
from headrace.seam.records import Beat, Cancel, Claim, Delete, JobId, Pause, Reap, Row, Selector, Settlement
from headrace.types import JobState

SECOND = 1_000_000
HOUR = 3_600 * SECOND
START = 1_800_000_000_000_000
DAY = "20270115"
"""The day of the start, which has a partition."""
NEXT_DAY = "20270116"
"""One that has none yet."""
NOW = START + 1_000 * SECOND
"""The instant of both statements: scheduled jobs are due then, and short leases over."""

QUEUES = ("q", "other")
IDLE = "third"
WORKER = "w1"
"""Who has the leases of a scene."""
NEWCOMER = "w2"
"""Who claims in a pair of statements."""
INBOX = "in"

_PLAIN = range(16, 20)
_DUE = 500 * SECOND
_OVER = 100 * SECOND
_GOOD = 2_000 * SECOND


def job_id(number: int) -> JobId:
    """An id made at the start, that sorts by its number."""
    return (START // 1_000).to_bytes(6) + bytes.fromhex(f"70008000{number:012x}")


def number_of(name: JobId) -> int:
    """The number in an id."""
    return int.from_bytes(name[10:])


def strand_of(name: JobId) -> int:
    """The strand that a job belongs to; one without a key is a strand for itself."""
    number = number_of(name)
    return number if number % 100 in _PLAIN else number % 100


def key_of(strand: int) -> str:
    """The key of a strand's jobs."""
    return f"k{strand}"


def row(number: int, **changes: Any) -> Row:
    """A job of the strand, with its key."""
    given = {"queue": "q", "task": "t", "cells": {"parameters": b"{}"}, "key": key_of(number % 100)}
    return Row(id=job_id(number), **(given | changes))


Build = Callable[[Backend, int], Awaitable[None]]


class Strand(NamedTuple):
    """One job, or a few of one key, and how they came to be what they are."""

    number: int
    name: str
    build: Build
    jobs: tuple[int, ...]
    epoch: int = START
    holder: str = WORKER
    """The lease that there is, or, where the job waits, that the next claim will give out."""


async def _insert(store: Backend, number: int, **changes: Any) -> None:
    await store.insert([row(number, **({"reply_to": INBOX} | changes))], START)


async def _claim(store: Backend, lease_for: int = _OVER, at: int = START) -> None:
    await store.claim(Claim(WORKER, ("q",), 1, lease_for), at)


async def _end(store: Backend, number: int, state: JobState, result_ttl: int = 0, **changes: Any) -> None:
    result = b"result" if state is JobState.COMPLETED else None
    await _insert(store, number, **changes)
    await _claim(store)
    ended = Settlement(job_id(number), START, WORKER, state, result=result, result_ttl=result_ttl, error=b"why")
    await store.finish([ended], START)


async def _waiting(store: Backend, number: int) -> None:
    await _insert(store, number, delay=_DUE)


async def _expired(store: Backend, number: int) -> None:
    await _insert(store, number, delay=_DUE, expires=_OVER)


async def _paused(store: Backend, number: int) -> None:
    await _waiting(store, number)
    await store.alter(Selector(ids=[job_id(number)]), Pause(), START)


async def _running(store: Backend, number: int) -> None:
    await _insert(store, number)
    await _claim(store, _GOOD)


async def _overdue(store: Backend, number: int) -> None:
    await _insert(store, number)
    await _claim(store)


async def _poison(store: Backend, number: int) -> None:
    await _insert(store, number)
    for loss in range(2):
        at = START + loss * 2 * _OVER
        await _claim(store, at=at)
        await store.reap(Reap(max_lost=2), at + _OVER)
    await _claim(store, at=START + 4 * _OVER)


async def _asked_to_stop(store: Backend, number: int) -> None:
    await _running(store, number)
    await store.alter(Selector(ids=[job_id(number)]), Cancel(), START)


async def _stopped_too_late(store: Backend, number: int) -> None:
    await _overdue(store, number)
    await store.alter(Selector(ids=[job_id(number)]), Cancel(), START)


async def _held(store: Backend, number: int) -> None:
    await _end(store, number, JobState.COMPLETED, _GOOD)


async def _spent(store: Backend, number: int) -> None:
    await _end(store, number, JobState.COMPLETED, _OVER)


async def _failed(store: Backend, number: int) -> None:
    await _end(store, number, JobState.FAILED)


async def _cancelled(store: Backend, number: int) -> None:
    await _end(store, number, JobState.CANCELLED)


async def _displaced(store: Backend, number: int) -> None:
    await _end(store, number, JobState.FAILED)
    await _insert(store, number + 900, delay=_DUE)


async def _twins(store: Backend, number: int) -> None:
    await _insert(store, number, delay=_DUE)
    await _insert(store, number + 900, delay=_DUE, queue="other")
    await store.alter(Selector(ids=[job_id(number + 900)]), Pause(), START)


async def _failed_plain(store: Backend, number: int) -> None:
    await _end(store, number, JobState.FAILED, key=None)


async def _spent_plain(store: Backend, number: int) -> None:
    await _end(store, number, JobState.COMPLETED, key=None)


async def _overdue_plain(store: Backend, number: int) -> None:
    await _insert(store, number, key=None)
    await _claim(store)


async def _waiting_plain(store: Backend, number: int) -> None:
    await _insert(store, number, key=None, delay=_DUE)


async def _nothing(store: Backend, number: int) -> None:
    await _insert(store, number, delay=_DUE)
    await store.alter(Selector(ids=[job_id(number)]), Delete(), START)


_ALL = (  # those that are built by a reap, and then by claims, come first
    Strand(1, "poison", _poison, (1,), epoch=START + 4 * _OVER),
    Strand(2, "completed and held", _held, (2,)),
    Strand(3, "completed, no longer held", _spent, (3,)),
    Strand(4, "failed", _failed, (4,)),
    Strand(5, "cancelled", _cancelled, (5,)),
    Strand(6, "failed, its key taken since", _displaced, (6, 906), epoch=NOW, holder=NEWCOMER),
    Strand(7, "running", _running, (7,)),
    Strand(8, "running, its lease over", _overdue, (8,)),
    Strand(9, "running, asked to stop", _asked_to_stop, (9,)),
    Strand(10, "running, asked to stop, its lease over", _stopped_too_late, (10,)),
    Strand(11, "paused", _paused, (11,)),
    Strand(12, "waiting", _waiting, (12,), epoch=NOW, holder=NEWCOMER),
    Strand(13, "expired", _expired, (13,), epoch=NOW, holder=NEWCOMER),
    Strand(14, "one key in two queues", _twins, (14, 914), epoch=NOW, holder=NEWCOMER),
    Strand(15, "nothing", _nothing, ()),
    Strand(16, "failed, without a key", _failed_plain, (16,)),
    Strand(17, "completed, without a key", _spent_plain, (17,)),
    Strand(18, "running, without a key", _overdue_plain, (18,)),
    Strand(19, "waiting, without a key", _waiting_plain, (19,), epoch=NOW, holder=NEWCOMER),
)


class Scene(NamedTuple):
    """Some strands, side by side."""

    name: str
    strands: tuple[Strand, ...]

    async def build(self, store: Backend) -> None:
        """On an empty store. Two workers are listed, one of which has not been seen for too long, and a queue is known
        that has no jobs."""
        for holder, ttl in ((WORKER, _GOOD), ("gone", _OVER)):
            await store.renew(Beat(holder, holder, QUEUES, SECOND, ttl=ttl), START)
        await store.policies.pause(QueuePause(IDLE, paused=False), START)
        for strand in self.strands:
            await strand.build(store, strand.number)

    @property
    def numbers(self) -> list[int]:
        """Of its strands."""
        return [strand.number for strand in self.strands]

    @property
    def jobs(self) -> list[JobId]:
        """That are there."""
        return [job_id(number) for strand in self.strands for number in strand.jobs]


CROWD = Scene("all together", _ALL)
"""A batch of many rows on either side."""
_LIKE_OTHERS = (1, 5, 7, 9, 10, 16, 17, 18, 19)
"""Strands whose jobs are locked as those of another strand are."""
ALONE = tuple(Scene(strand.name, (strand,)) for strand in _ALL if strand.number not in _LIKE_OTHERS)
"""One strand each: it is the first, and only, thing that the second statement may have to wait for."""
THIRTY_FAILED = Scene("thirty failed", tuple(Strand(number, "failed", _failed, (number,)) for number in range(1, 31)))
