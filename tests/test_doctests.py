"""The examples in docstrings run, and every public name has a docstring."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from typing import Any

import pytest

import headrace

PRIVATE = ("headrace.cli", "headrace.testing.plugin")
"""Not imported here: a program, and a plugin that pytest has loaded already."""

WITHOUT_EXAMPLE = {
    "Again",
    "CancelToken",
    "Cancelled",
    "Completed",
    "Done",
    "Duplicate",
    "Event",
    "EventKind",
    "Fail",
    "Handle",
    "Job",
    "JobInfo",
    "JobStatus",
    "Lease",
    "Outcome",
    "Patch",
    "Queued",
    "Retry",
    "Serde",
    "Task",
    "doubling_to_an_hour",
    "exponential",
    "for_ever",
    "half_minute_to_ten",
    "immediate",
    "never",
}
"""Public names that are shown in the examples of others. One that gets an example of its own leaves this list."""


def _modules() -> list[str]:
    found = pkgutil.walk_packages(headrace.__path__, "headrace.")
    return ["headrace", *sorted(m.name for m in found if not m.name.startswith(PRIVATE) and "__main__" not in m.name)]


@pytest.mark.parametrize("name", _modules())
def test_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    assert failed == 0
    assert (module.__doc__ or "").strip(), f"{name} does not say what it is for"


def _public() -> dict[str, Any]:
    return {name: getattr(headrace, name) for name in headrace.__all__}


def test_all_is_sorted_and_complete() -> None:
    assert list(headrace.__all__) == sorted(headrace.__all__)
    assert set(headrace.__all__) <= set(dir(headrace))
    with pytest.raises(AttributeError, match="no attribute 'bogus'"):
        headrace.bogus


@pytest.mark.parametrize(
    "first", ["headrace.app", "headrace.connection", "headrace.queue", "headrace.sync", "headrace.cli"]
)
def test_public_names_mean_the_same_whatever_was_imported_first(first: str) -> None:
    """A name of the package is never one of its modules: ``from headrace import connect`` gives the function."""
    modules = "[name for name in headrace.__all__ if isinstance(getattr(headrace, name), types.ModuleType)]"
    code = f"import {first}, headrace, types; print({modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", headrace.__all__)
def test_public_names_are_explained(name: str) -> None:
    """In words of their own, not those of a base class."""
    value = _public()[name]
    text = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
    assert text
    assert text.strip()[0].isupper() or text.strip()[0].isdigit() or text.strip().startswith("``")


@pytest.mark.parametrize("name", [name for name in headrace.__all__ if inspect.isclass(getattr(headrace, name))])
def test_public_methods_are_explained(name: str) -> None:
    value = _public()[name]
    obvious = {
        "encode",
        "decode",
        "id",
        "task",
        "queue",
        "tenant",
        "priority",
        "attempt",
        "lost",
        "enqueued_at",
        "lease",
    }
    missing = [
        member
        for member, what in vars(value).items()
        if not member.startswith("_")
        and member not in obvious
        and (inspect.isfunction(what) or isinstance(what, property | classmethod | staticmethod))
        and not inspect.getdoc(getattr(value, member) if not isinstance(what, property) else what)
    ]
    assert missing == []


def test_examples_are_where_they_help() -> None:
    """Every other public name shows itself in an example."""
    with_example = {name for name, value in _public().items() if ">>>" in (value.__doc__ or "")}
    assert set(headrace.__all__) - with_example == WITHOUT_EXAMPLE
