"""Calls to payloads and back: a function's signature as a typed record of its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import reduce
from operator import or_
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.inspect import CollectionType, CustomType, DictType, TupleType, Type, type_info

from headrace.api.options import JobOptions
from headrace.core.callables import written
from headrace.errors import CodecError, ConfigError, InvalidJob
from headrace.payloads.codec import ENCODABLE, JsonSerde
from headrace.types import OUTCOMES, Done
from headrace.worker.given import given_types
from headrace.worker.job import Job

_PLAIN = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Arguments:
    """Encodes the arguments of a call as one JSON object by parameter name, and decodes them by their annotations.

    Arguments that are left out are not stored: the default is the one in force where the job runs.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._name = name
        signature, hints = _signature(function, name), _hints(function, name)
        parameters = list(signature.parameters.values())
        self.takes_job = bool(parameters) and _is_job(hints.get(parameters[0].name))
        if self.takes_job:
            parameters = parameters[1:]
        self.given = given_types(parameters, hints, f"task {name}")
        """The parameters that a worker fills in, and their types."""
        parameters = [p for p in parameters if p.name not in self.given]
        for parameter in parameters:
            if _is_job(hints.get(parameter.name)):
                raise ConfigError(f"task {name}: {parameter.name}: the job must be the first parameter")
            if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                raise ConfigError(f"task {name}: *{parameter.name} is not supported; take a list or a dict instead")
        self._signature = signature.replace(parameters=parameters)
        self._names = [p.name for p in parameters]
        self._types = {name: hints.get(name, Any) for name in self._names}
        self._positional = [p.name for p in parameters if p.kind in _PLAIN]
        self._positional_only = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY]
        self._required = [p.name for p in parameters if p.default is p.empty]
        self._optional = len(self._required) < len(self._names)
        self._keyword = len(self._positional) < len(self._names)
        self.result_type = _result_type(hints.get("return", Any))
        self._serde: JsonSerde[Any] = JsonSerde(_record(name, parameters, hints))

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The call as bytes. Raises ``InvalidJob`` unless the function can be called like that."""
        given = dict(zip(self._positional, args, strict=False))
        if len(args) > len(self._positional):
            self._explain(args, kwargs)
        if kwargs:
            if not kwargs.keys().isdisjoint([*given, *self._positional_only]):
                self._explain(args, kwargs)
            given.update(kwargs)
        if len(given) < len(self._names) and any(name not in given for name in self._required):
            self._explain(args, kwargs)
        try:
            return self._serde.encode(given)
        except CodecError as error:
            self._refuse_unknown(given)
            raise InvalidJob(f"task {self._name}{self._signature}: {self._culprit(given) or error}") from error

    def decode(self, body: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments of the call."""
        values = msgspec.structs.astuple(self._serde.decode(body))
        if not (self._optional or self._keyword):
            return values, {}
        given = {name: value for name, value in zip(self._names, values, strict=True) if value is not UNSET}
        return tuple(given.pop(name) for name in self._positional_only if name in given), given

    def named(self, body: bytes) -> dict[str, Any]:
        """The arguments of the call by name."""
        values = msgspec.structs.astuple(self._serde.decode(body))
        return {name: value for name, value in zip(self._names, values, strict=True) if value is not UNSET}

    def split(self, named: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments by name as positional and keyword ones."""
        given = dict(named)
        return tuple(given.pop(name) for name in self._positional_only if name in given), given

    def _refuse_unknown(self, given: Mapping[str, Any]) -> None:
        for name in given:
            if name in self._names:
                continue
            if name in JobOptions.__annotations__:
                hint = f"; it is an option: task.options({name}=…).enqueue(…)"
            elif close := get_close_matches(name, self._names, 1):
                hint = f"; did you mean {close[0]!r}?"
            else:
                hint = ""
            raise InvalidJob(f"task {self._name}{self._signature}: unknown parameter {name!r}{hint}") from None

    def _culprit(self, given: Mapping[str, Any]) -> str:
        """Which argument cannot be encoded, and why; empty if all can."""
        for name, value in given.items():
            try:
                JsonSerde(self._types[name]).encode(value)
            except CodecError as error:
                if str(error).startswith("cannot encode"):
                    return f"{name}: {error}"
        return ""

    def _explain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._refuse_unknown(kwargs)
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidJob(f"task {self._name}{self._signature}: {error}") from None
        raise InvalidJob(f"task {self._name}{self._signature} cannot be called with these arguments")


def _signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"task {name}: expected a function whose parameters can be read ({error}); wrap it in one of your own"
        ) from error


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(written(function), include_extras=True)
    except Exception as error:
        raise ConfigError(
            f"task {name}: an annotation cannot be resolved ({error}); define its type at the top of a module"
        ) from error


def _is_job(hint: Any) -> bool:
    return hint is Job or getattr(hint, "__origin__", None) is Job


def _result_type(hint: Any) -> Any:
    """The type of the result: what is left of the annotation without outcomes, and what ``Done[…]`` says."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    found = [result for option in options for result in _results_of(option)]
    return Any if not found or Any in found else reduce(or_, found)


def _results_of(option: Any) -> tuple[Any, ...]:
    if get_origin(option) is Done:
        return get_args(option)
    if option is Done:
        return (Any,)
    return () if option in OUTCOMES else (option,)


def _record(name: str, parameters: list[inspect.Parameter], hints: dict[str, Any]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for parameter in parameters:
        hint = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint if hint is Any else hint | UnsetType, UNSET))
    try:
        record = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True, frozen=True)
        msgspec.json.Decoder(record)
    except TypeError as error:
        raise ConfigError(f"task {name}: {error}") from error
    for parameter in parameters:
        if parameter.default is parameter.empty and (hint := hints.get(parameter.name)) is not None:
            _refuse_unstorable(hint, f"task {name}: {parameter.name}")
    return record


def _refuse_unstorable(hint: Any, what: str) -> None:
    try:
        info = type_info(hint)
    except Exception:  # what is unknown here is refused when a job is made
        return
    if (kind := _unstorable(info)) is not None:
        raise ConfigError(f"{what}: {kind.__qualname__} cannot be stored; {ENCODABLE}")


def _unstorable(info: Type) -> type | None:
    """The class in a type whose values cannot be stored, as far as that is known without a value."""
    match info:
        case CustomType(cls):
            return None if cls is object or hasattr(cls, "model_validate") else cls
        case CollectionType(item_type):
            return _unstorable(item_type)
        case DictType(_, value_type):
            return _unstorable(value_type)
        case TupleType(item_types):
            return next((kind for one in item_types if (kind := _unstorable(one)) is not None), None)
    return None
