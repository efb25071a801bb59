"""The examples in docstrings run, and every public name has a docstring with an example."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from itertools import pairwise
from types import ModuleType

import pytest

import headrace

PRIVATE = ("headrace.cli", "headrace.contrib.", "headrace.testing.plugin")
"""Not imported here: a program, what needs a web framework that is set up, and a plugin that pytest has loaded."""

FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


def _modules() -> list[str]:
    found = pkgutil.walk_packages(headrace.__path__, "headrace.")
    return ["headrace", *sorted(m.name for m in found if not m.name.startswith(PRIVATE) and "__main__" not in m.name)]


def _notes(module: ModuleType) -> dict[str, str]:
    """The strings beneath assignments: the docstrings of values, which Python itself does not keep."""
    notes = {}
    for value, note in pairwise(ast.parse(inspect.getsource(module)).body):
        match value, note:
            case ast.Assign([ast.Name(name)]) | ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                notes[name] = inspect.cleandoc(text)
    return notes


def _words(name: str) -> str:
    """What the docstring of a public name says, in words of its own and not those of a base class."""
    value = getattr(headrace, name)
    if inspect.isclass(value):
        return inspect.cleandoc(value.__dict__.get("__doc__") or "")
    if inspect.isfunction(value):
        return inspect.getdoc(value) or ""
    return _notes(importlib.import_module(headrace._HOMES[name])).get(name, "")


@pytest.mark.parametrize("name", _modules())
def test_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=FLAGS)
    assert failed == 0
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for noted, text in _notes(module).items():
        test = doctest.DocTestParser().get_doctest(text, vars(module).copy(), noted, module.__file__, 0)
        assert runner.run(test).failed == 0
    assert (module.__doc__ or "").strip(), f"{name} does not say what it is for"


def test_all_is_sorted_and_complete() -> None:
    assert list(headrace.__all__) == sorted(headrace.__all__)
    assert set(headrace.__all__) <= set(dir(headrace))
    with pytest.raises(AttributeError, match="no attribute 'bogus'"):
        headrace.bogus


@pytest.mark.parametrize(
    "first", ["headrace.api.app", "headrace.api.connection", "headrace.api.queue", "headrace.api.sync", "headrace.cli"]
)
def test_public_names_mean_the_same_whatever_was_imported_first(first: str) -> None:
    """A name of the package is never one of its modules: ``from headrace import connect`` gives the function."""
    modules = "[name for name in headrace.__all__ if isinstance(getattr(headrace, name), types.ModuleType)]"
    code = f"import {first}, headrace, types; print({modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", headrace.__all__)
def test_public_names_are_explained(name: str) -> None:
    text = _words(name)
    assert text
    assert text[0].isupper() or text[0].isdigit() or text.startswith("``")


@pytest.mark.parametrize("name", [name for name in headrace.__all__ if inspect.isclass(getattr(headrace, name))])
def test_public_methods_are_explained(name: str) -> None:
    value = getattr(headrace, name)
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


@pytest.mark.parametrize("name", headrace.__all__)
def test_public_names_are_shown_in_use(name: str) -> None:
    assert doctest.DocTestParser().get_examples(_words(name)), f"{name} has no example in its docstring"
