"""A function's signature as a typed record of its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from headrace import Again, Done, Job, JsonSerde, NewJob
from headrace.api.arguments import Arguments
from headrace.api.options import JobOptions
from headrace.errors import CodecError, ConfigError, InvalidJob
from tests.unit.given import given


def everything(a: int, b: str = "b", /, c: float = 0.5, *, d: bool, e: list[int] | None = None) -> int: ...
def required(a: int, b: str) -> None: ...
def nothing() -> None: ...
def with_job(job: Job[Any], a: int) -> Done: ...
def job_second(a: int, job: Job[Any]) -> None: ...
def untyped(a, b=1): ...  # type: ignore[no-untyped-def]
def outcome_or_value(a: int) -> int | Again: ...


def done_or_value(a: int) -> Done[int] | None: ...


def outcomes_alone(a: int) -> Done[str] | Again: ...


def any_outcome(a: int) -> Done | int: ...


def never_done(a: int) -> Again: ...


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What arrives of a call, in the form in which the function will be called."""
    arguments = Arguments(function, "task")
    return arguments.decode(arguments.encode(args, kwargs))


@given(st.integers(-(2**63), 2**63), st.text(st.characters(exclude_categories=["Cs"])), st.booleans(), st.data())
def test_a_call_arrives_as_it_was_made(a: int, b: str, d: bool, data: Any) -> None:
    """Bound to the signature, before and after are the same, whichever way the arguments were given."""
    args: list[Any] = [a]
    kwargs: dict[str, Any] = {"d": d}
    if data.draw(st.booleans()):
        args.append(b)
        if data.draw(st.booleans()):
            args.append(0.25)
    if len(args) < 3 and data.draw(st.booleans()):
        kwargs["c"] = 1.5
    if data.draw(st.booleans()):
        kwargs["e"] = [1, 2]
    signature = inspect.signature(everything)
    arrived_args, arrived_kwargs = call(everything, *args, **kwargs)
    assert signature.bind(*arrived_args, **arrived_kwargs).arguments == signature.bind(*args, **kwargs).arguments


def test_what_was_left_out_is_not_stored() -> None:
    body = Arguments(everything, "task").encode((1,), {"d": True})
    assert body == b'{"a":1,"d":true}'


def test_none_is_not_left_out() -> None:
    assert call(everything, 1, d=True, e=None) == ((1,), {"d": True, "e": None})


def test_functions_without_parameters() -> None:
    assert call(nothing) == ((), {})
    with pytest.raises(InvalidJob, match="too many"):
        call(nothing, 1)


def test_without_annotations() -> None:
    assert call(untyped, {"x": [1]}, b=None) == ((), {"a": {"x": [1]}, "b": None})


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "missing a required argument: 'a'"),
        ((1,), {}, "missing a required"),
        ((1, "b", 1.0, True), {"d": True}, "too many positional"),
        ((1,), {"d": True, "z": 1}, "z"),
        ((1,), {"d": True, "a": 2}, "a"),
        (("x",), {"d": True}, r"\$\.a"),
        ((1,), {"d": "yes"}, r"\$\.d"),
        ((1,), {"d": True, "e": [1, "x"]}, r"\$\.e\[1\]"),
        ((1, 2), {"d": True}, r"\$\.b"),
    ],
)
def test_calls_that_could_not_be_made(args: Any, kwargs: Any, says: str) -> None:
    with pytest.raises(InvalidJob, match=says) as caught:
        Arguments(everything, "mail.send").encode(args, kwargs)
    assert "mail.send(a: " in str(caught.value)


@pytest.mark.parametrize("args", [(), (1, "b")])
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("delay", "; it is an option: task.options(delay=…).enqueue(…)"),
        ("wait", "; it is an option: task.options(wait=…).enqueue(…)"),
        ("aa", "; did you mean 'a'?"),
        ("task", ""),
        ("zzz", ""),
    ],
)
def test_parameters_that_there_are_none_of(args: tuple[Any, ...], name: str, hint: str) -> None:
    with pytest.raises(InvalidJob) as told:
        Arguments(required, "mail.send").encode(args, {name: 1})
    assert str(told.value).endswith(f"mail.send(a: 'int', b: 'str') -> 'None': unknown parameter {name!r}{hint}")


def test_options_are_those_of_a_task() -> None:
    """Whatever a new job may say, and how long ``call`` waits."""
    assert set(JobOptions.__annotations__) == {*NewJob.__struct_fields__, "wait"} - {"task", "args", "sections", "id"}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "objects of type object are not supported; what can be stored is None, bool, numbers"),
        ({"deep": [print]}, "objects of type builtin_function_or_method are not supported"),
        (float("nan"), "cannot encode nan"),
    ],
)
def test_an_argument_that_cannot_be_encoded_is_named(value: Any, said: str) -> None:
    def send(sizes: dict[int, str], b: Any) -> None: ...

    with pytest.raises(InvalidJob) as told:
        Arguments(send, "mail.send").encode(({1: "x"}, value), {})
    assert ": b: cannot encode " in str(told.value)
    assert said in str(told.value)
    assert "cannot encode dict: objects of type object" not in str(told.value)


def test_an_object_is_anything() -> None:
    """Whoever annotates strictly writes ``object`` for what may be anything."""

    def note(what: object, more: dict[str, object], last: object = None) -> list[object]: ...

    for value in (None, 1, "x", [1, None], {"a": [True]}):
        given = {"what": value, "more": {"a": value}, "last": value}
        assert call(note, **given) == ((), given)
        assert JsonSerde(Arguments(note, "task").result_type).decode(JsonSerde().encode([value])) == [value]


def test_positional_only_given_by_name() -> None:
    with pytest.raises(InvalidJob, match="positional"):
        Arguments(everything, "task").encode((), {"a": 1, "d": True})


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"a": 1}', b'{"a": "x", "d": true}', b'{"a":1,"d":true,"x":1}'])
def test_bodies_that_do_not_fit(body: bytes) -> None:
    """A job of another version of the task is told as such."""
    with pytest.raises(CodecError):
        Arguments(everything, "task").decode(body)


def test_the_job_is_not_an_argument() -> None:
    arguments = Arguments(with_job, "task")
    assert arguments.takes_job
    assert arguments.decode(arguments.encode((1,), {})) == ((1,), {})
    assert not Arguments(required, "task").takes_job


def test_a_job_anywhere_else_is_a_mistake() -> None:
    """Only the first parameter can be the job; anywhere else it could never be given."""
    with pytest.raises(ConfigError, match="job"):
        Arguments(job_second, "task")


def test_result_types() -> None:
    """A function that may return outcomes is not held to the type of its results."""
    assert Arguments(required, "task").result_type is type(None)
    assert Arguments(everything, "task").result_type is int
    assert Arguments(with_job, "task").result_type is Any
    assert Arguments(outcome_or_value, "task").result_type is int
    assert Arguments(done_or_value, "task").result_type == int | None
    assert Arguments(outcomes_alone, "task").result_type is str
    assert Arguments(any_outcome, "task").result_type is Any
    assert Arguments(never_done, "task").result_type is Any
    assert Arguments(untyped, "task").result_type is Any


def test_signatures_that_cannot_be_stored() -> None:
    def variable(*numbers: int) -> None: ...
    def keywords(**options: int) -> None: ...

    for function, name in ((variable, "numbers"), (keywords, "options")):
        with pytest.raises(ConfigError, match=name):
            Arguments(function, "task")


def test_annotations_that_cannot_be_resolved() -> None:
    def unresolved(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigError, match="Missing"):
        Arguments(unresolved, "task")


def test_types_that_cannot_be_told_apart_in_json() -> None:
    def ambiguous(a: list[int] | set[int]) -> None: ...

    with pytest.raises(ConfigError, match="task"):
        Arguments(ambiguous, "task")
