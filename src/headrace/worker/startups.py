"""What is made once when a worker starts, or a child process of it: pools, clients, models. Tasks get it by type."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Struct

from headrace.core.callables import written
from headrace.errors import ConfigError
from headrace.text import shown
from headrace.worker.given import refuse_given

T = TypeVar("T")

Per = Literal["worker", "child"]

log = logging.getLogger("headrace")


class Maker(Struct, frozen=True):
    """One start-up function."""

    function: Callable[[], Any]
    name: str
    kind: Any
    """The type of what it makes; None: nothing that tasks get."""


class Startups:
    """The start-up functions of an app, and what they have made in this process."""

    def __init__(self) -> None:
        self._makers: dict[str, list[Maker]] = {"worker": [], "child": []}
        self._made: dict[Any, Any] = {}
        self._instead: dict[Any, Any] = {}
        self._child: list[Iterator[Any]] | None = None
        """In a child that has started: what is to be ended, in the order of its start."""

    def add(self, function: Callable[[], Any], per: object) -> None:
        """Register a start-up function."""
        if per not in ("worker", "child"):
            raise ConfigError(f"startup: per: expected 'worker' or 'child', got {shown(per)}")
        maker = _maker(function)
        if per == "child" and _is_async(function):
            raise ConfigError(f"startup {maker.name}: a child process has no event loop; make it a plain function")
        if maker.kind is not None and any(other.kind == maker.kind for other in self._makers[str(per)]):
            raise ConfigError(f"startup {maker.name}: another start-up function makes {shown_type(maker.kind)} already")
        self._makers[str(per)].append(maker)

    @property
    def for_children(self) -> bool:
        """Whether children have something to start, and to end."""
        return bool(self._makers["child"])

    def use(self, kind: type[T]) -> T:
        """What was made of this type."""
        for place in (self._instead, self._made):
            if kind in place:
                return place[kind]  # type: ignore[no-any-return]
        raise ConfigError(f"there is no {shown_type(kind)} here: {self._why_not(kind)}")

    def _why_not(self, kind: Any) -> str:
        for per in ("worker", "child"):
            if any(maker.kind == kind for maker in self._makers[per]):
                return f"it is made when a {per} starts, and handed to the tasks that run there"
        return "no @app.startup function is annotated to return it"

    def check(self, kind: Any, per: Per, what: str) -> None:
        """Refuse a task that asks for what nobody makes where it runs."""
        if kind not in self._instead and all(maker.kind != kind for maker in self._makers[per]):
            raise ConfigError(f"{what}: no @app.startup(per={per!r}) function makes {shown_type(kind)}")

    @contextmanager
    def using(self, instead: Mapping[Any, Any]) -> Iterator[None]:
        """Hand these out, by type, and do not make what they stand in for."""
        before, self._instead = self._instead, self._instead | dict(instead)
        try:
            yield
        finally:
            self._instead = before

    @asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """Run the start-up functions of a worker; at the end, what comes after their ``yield``, last one first."""
        ends: list[tuple[Maker, Any]] = []
        try:
            for maker in self._makers["worker"]:
                if maker.kind is None or maker.kind not in self._instead:
                    value, end = await _start(maker)
                    ends.append((maker, end))
                    if maker.kind is not None:
                        self._made[maker.kind] = value
            yield
        finally:
            for maker, end in reversed(ends):
                self._made.pop(maker.kind, None)
                try:
                    await _end(end)
                except Exception:
                    log.exception("startup %s: what comes after its yield raised", maker.name)

    def start_child(self) -> None:
        """The same in a child process, once."""
        if self._child is not None:
            return
        self._child = []
        try:
            for maker in self._makers["child"]:
                made, end = _start_plain(maker)
                if end is not None:
                    self._child.append(end)
                if maker.kind is not None:
                    self._made[maker.kind] = made
        except BaseException:
            self.end_child()
            raise
        _in_this_child.append(self)

    def end_child(self) -> None:
        """The end of the child has come."""
        for end in reversed(self._child or []):
            try:
                next(end, None)
            except Exception:
                log.exception("a startup function raised after its yield")
        self._child = None


_in_this_child: list[Startups] = []


def end_children() -> None:
    """This child process ends."""
    for startups in _in_this_child:
        startups.end_child()


async def _start(maker: Maker) -> tuple[Any, Any]:
    """What was made, and what is to be ended."""
    if not _is_async(maker.function):
        return await asyncio.to_thread(_start_plain, maker)
    made = maker.function()
    if not inspect.isasyncgen(made):
        return await made, None
    try:
        return await anext(made), made
    except StopAsyncIteration:
        raise _no_yield(maker) from None


def _start_plain(maker: Maker) -> tuple[Any, Any]:
    made = maker.function()
    return (_first(made, maker), made) if inspect.isgenerator(made) else (made, None)


def _first(made: Iterator[Any], maker: Maker) -> Any:
    try:
        return next(made)
    except StopIteration:
        raise _no_yield(maker) from None


def _no_yield(maker: Maker) -> ConfigError:
    return ConfigError(f"startup {maker.name}: expected it to yield once, got to its end without")


async def _end(end: Any) -> None:
    if inspect.isasyncgen(end):
        await anext(end, None)
        await end.aclose()
    elif end is not None:
        await asyncio.to_thread(_end_plain, end)


def _end_plain(end: Any) -> None:
    next(end, None)
    end.close()


def _is_async(function: Callable[[], Any]) -> bool:
    source = written(function)
    return inspect.iscoroutinefunction(source) or inspect.isasyncgenfunction(source)


def _maker(function: Callable[[], Any]) -> Maker:
    if not callable(function):
        raise ConfigError(f"startup: expected a function, got {shown(function)}")
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if any(p.default is p.empty for p in inspect.signature(function).parameters.values()):
        raise ConfigError(f"startup {name}: expected a function without parameters; it may call app.use(Type)")
    refuse_given(function, f"startup {name}")
    source = written(function)
    try:
        hint = get_type_hints(source).get("return")
    except Exception as error:
        raise ConfigError(
            f"startup {name}: an annotation cannot be resolved ({error}); define its type at the top of a module"
        ) from error
    if inspect.isgeneratorfunction(source) or inspect.isasyncgenfunction(source):
        hint = (get_args(hint) or (None,))[0]
    return Maker(function, name, None if hint is type(None) else hint)


def shown_type(kind: Any) -> str:
    """A type as messages name it."""
    return kind.__qualname__ if isinstance(kind, type) and get_origin(kind) is None else str(kind)
