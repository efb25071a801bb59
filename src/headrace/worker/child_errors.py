"""Exceptions of handlers in child processes, on their way to the parent."""

from __future__ import annotations

import traceback
from multiprocessing.reduction import ForkingPickler
from typing import Any

from msgspec import Struct


class Raised(Struct, frozen=True):
    """An exception as it is sent to the parent: pickled whole, if that is possible, and in parts that always are."""

    whole: bytes | None
    kinds: list[bytes]
    """Its class and the bases of its class, without those that cannot be pickled."""
    names: dict[str, str]
    text: str
    args: bytes | None
    attributes: dict[str, bytes]
    trace: str

    def error(self) -> Exception:
        """The exception. If it cannot be unpickled here, an instance of a subclass of its class stands in for it."""
        whole = unpickled(self.whole)
        if isinstance(whole, Exception):
            return whole
        for kind in map(unpickled, self.kinds):
            try:
                return self._stand_in(kind)
            except Exception:  # the class cannot be imported here, or cannot be subclassed
                continue
        return self._stand_in(Exception)

    def _stand_in(self, kind: type[Exception]) -> Exception:
        name = self.names["__qualname__"]
        shown = {"__str__": lambda error: self.text, "__repr__": lambda error: f"{name}({self.text!r})"}
        made: Any = type(name, (kind,), self.names | shown)
        error: Exception = made.__new__(made)  # not by __init__: its parameters are not known
        error.args = unpickled(self.args) or (self.text,)
        vars(error).update((attribute, unpickled(value)) for attribute, value in self.attributes.items())
        return error


class ChildTraceback(Exception):
    """The cause of an exception from a child: its traceback there."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def raised(error: BaseException) -> Raised:
    """The exception, ready to be sent."""
    trace = "".join(traceback.format_exception(error))
    error = for_future(error)
    kind, text = type(error), _text(error)
    whole = pickled(error)
    again = unpickled(whole)
    if type(again) is not kind or _text(again) != text:  # its __init__ takes other parameters than its args
        whole = None
    kinds = [pickled(one) for one in kind.__mro__ if issubclass(one, Exception)]
    attributes = {name: pickled(value) for name, value in vars(error).items()}
    return Raised(
        whole,
        [body for body in kinds if body is not None],
        {"__module__": kind.__module__, "__qualname__": kind.__qualname__},
        text,
        pickled(error.args),
        {name: body for name, body in attributes.items() if body is not None},
        trace,
    )


def _text(error: object) -> str:
    try:
        return str(error)
    except Exception:
        return f"<{type(error).__name__} that cannot be shown>"


def pickled(value: object) -> bytes | None:
    """The value, pickled by multiprocessing, which can pickle more than ``pickle``; None if even that cannot."""
    try:
        return bytes(ForkingPickler.dumps(value))
    except Exception:
        return None


def unpickled(body: bytes | None) -> Any:
    """The value that was pickled; None if it cannot be unpickled here."""
    try:
        return None if body is None else ForkingPickler.loads(body)
    except Exception:
        return None


def for_future(error: BaseException) -> Exception:
    """The error, or a ``RuntimeError`` about it if a future cannot hold it."""
    if isinstance(error, StopIteration) or not isinstance(error, Exception):
        return RuntimeError(f"the handler raised {error!r}")
    return error
