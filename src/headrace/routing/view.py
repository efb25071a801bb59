"""What a store that is made of several looks like at this moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from headrace.errors import Unavailable
from headrace.seam.protocol import Backend

T = TypeVar("T")


class View(NamedTuple):
    """The stores that are in use, and which of them is which."""

    stores: tuple[Backend, ...]
    """In the order in which they are asked. A job that moves goes from an earlier to a later one, so one that is not
    found in the first is found in the second."""
    home: Backend
    """What belongs to no job lies here: rules, documents, the journal. New jobs and schedules go here too, if nothing
    else says where they go."""
    leg: str = ""
    """The leg on which jobs move from the first store to the second; empty: none does."""
    apart: bool = False
    """Whether no job ever goes from one to another. Then all are asked at once, and those that are there answer for
    themselves."""

    @property
    def alone(self) -> Backend | None:
        """The only store, if there is only one."""
        return self.stores[0] if len(self.stores) == 1 else None


Look = Callable[[], Awaitable[View]]


class Routed:
    """What several stores do together."""

    def __init__(self, look: Look) -> None:
        self._look = look


def present(capability: T | None) -> T:
    """A capability that all stores here have."""
    assert capability is not None
    return capability


async def each(view: View, call: Callable[[Backend], Awaitable[T]]) -> list[T]:
    """The answers of all stores."""
    if not view.apart:
        return [await call(store) for store in view.stores]
    found, problem = await those_there(view, call)
    if problem is not None:
        raise problem
    return found


async def those_there(view: View, call: Callable[[Backend], Awaitable[T]]) -> tuple[list[T], Unavailable | None]:
    """The answers of the stores that are there, and why others gave none. Raises if none is there; where jobs go from
    one store to another, if one is not there."""
    if not view.apart:
        return await each(view, call), None
    answers = await asyncio.gather(*map(call, view.stores), return_exceptions=True)
    found: list[T] = []
    problem: Unavailable | None = None
    for answer in answers:
        if isinstance(answer, Unavailable):
            problem = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found.append(answer)
    if not found and problem is not None:
        raise problem
    return found, problem


def pick(found: Sequence[Sequence[T | None]]) -> list[T | None]:
    """Of the answers of several stores to the same questions: the last one that is not None."""
    return [next((one for one in reversed(answers) if one is not None), None) for answers in zip(*found, strict=True)]
