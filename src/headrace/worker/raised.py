"""Exceptions on their way from one process to another."""

from __future__ import annotations

import traceback
from multiprocessing.reduction import ForkingPickler
from typing import Any

from msgspec import Struct


class Raised(Struct, frozen=True):
    """An exception on its way to the parent: itself if it can travel, and what can be told of it in any case."""

    whole: bytes | None
    kinds: list[bytes]
    """Its class and the bases of that, as far as they can travel."""
    names: dict[str, str]
    text: str
    args: bytes | None
    attributes: dict[str, bytes]
    trace: str

    def error(self) -> Exception:
        """The exception; for one that cannot be made again, a stand-in of a subclass of its class."""
        whole = read(self.whole)
        if isinstance(whole, Exception):
            return whole
        for kind in map(read, self.kinds):
            try:
                return self._stand_in(kind)
            except Exception:  # the class is not to be found here, or does not want to be subclassed
                continue
        return self._stand_in(Exception)

    def _stand_in(self, kind: type[Exception]) -> Exception:
        name = self.names["__qualname__"]
        shown = {"__str__": lambda error: self.text, "__repr__": lambda error: f"{name}({self.text!r})"}
        made: Any = type(name, (kind,), self.names | shown)
        error: Exception = made.__new__(made)  # no __init__: what it wants is not known
        error.args = read(self.args) or (self.text,)
        vars(error).update((attribute, read(value)) for attribute, value in self.attributes.items())
        return error


class ChildTraceback(Exception):
    """The cause of an exception from a child: where it was raised there."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def raised(error: BaseException) -> Raised:
    """The exception made ready to travel."""
    trace = "".join(traceback.format_exception(error))
    error = carried(error)
    kind, text = type(error), _text(error)
    whole = written(error)
    again = read(whole)
    if type(again) is not kind or _text(again) != text:  # its __init__ takes something else than its args
        whole = None
    kinds = [written(one) for one in kind.__mro__ if issubclass(one, Exception)]
    attributes = {name: written(value) for name, value in vars(error).items()}
    return Raised(
        whole,
        [body for body in kinds if body is not None],
        {"__module__": kind.__module__, "__qualname__": kind.__qualname__},
        text,
        written(error.args),
        {name: body for name, body in attributes.items() if body is not None},
        trace,
    )


def _text(error: object) -> str:
    try:
        return str(error)
    except Exception:
        return f"<{type(error).__name__} that cannot be shown>"


def written(value: object) -> bytes | None:
    """The value as bytes, by the pickler of multiprocessing, which takes more than the plain one."""
    try:
        return bytes(ForkingPickler.dumps(value))
    except Exception:
        return None


def read(body: bytes | None) -> Any:
    """What was written; None if it cannot be read here."""
    try:
        return None if body is None else ForkingPickler.loads(body)
    except Exception:
        return None


def carried(error: BaseException) -> Exception:
    """The error; or one that tells of it, if it cannot travel through a future and a task as what it is."""
    if isinstance(error, StopIteration) or not isinstance(error, Exception):
        return RuntimeError(f"the handler raised {error!r}")
    return error
