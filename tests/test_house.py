"""What the code must look like: functions and scripts that a reader can hold in the head."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

import headrace
from headrace.seam.records import CARRIED, Leased, Record
from headrace.testing.conformance import BackendConformance

HOME = Path(headrace.__file__).parent
LONGEST_FUNCTION = 60
LONGEST_SQL_FUNCTION = 120
LONGEST_SCRIPT = 300
WIDEST = 160
"""Characters of a line of SQL or Lua; those of Python are ruff's to count."""
SQL_FUNCTION = re.compile(
    r"^CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE) (\w+)"
    r"(?:[^;]*?\$\$.*?\$\$;|[^;$]*?\bAS\s*'(?:[^']|'')*';|[^;$]*?\bRETURN\b[^;]*;)",
    re.MULTILINE | re.DOTALL,
)
"""To its end: a body between dollars, one between quotation marks, or a single expression."""
MOST_LAYERS = 8


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from ``def`` to the end, without the docstring."""
    first = function.body[0]
    told = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    docstring = (first.end_lineno or 0) - first.lineno + 1 if told else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def test_no_function_is_long() -> None:
    long = [
        f"{path.relative_to(HOME)}:{node.lineno} {node.name}: {_lines(node)} lines"
        for path in sorted(HOME.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _lines(node) > LONGEST_FUNCTION
    ]
    assert not long, f"more than {LONGEST_FUNCTION} lines: split them into steps with names"


def test_no_function_of_sql_is_long() -> None:
    scripts = {path.name: path.read_text("utf-8") for path in sorted(HOME.rglob("*.sql"))}
    found = {name: list(SQL_FUNCTION.finditer(script)) for name, script in scripts.items()}
    made = {
        name: len(re.findall(r"\bCREATE\b(?! TRIGGER).*\b(?:FUNCTION|PROCEDURE)\b", script))
        for name, script in scripts.items()
    }
    assert sum(made.values()) > 300
    assert {name: len(functions) for name, functions in found.items()} == made, "a function that was not looked at"
    long = [
        f"{name} {function[1]}: {lines} lines"
        for name, functions in found.items()
        for function in functions
        if (lines := function[0].count("\n") + 1) > LONGEST_SQL_FUNCTION
    ]
    assert not long, f"more than {LONGEST_SQL_FUNCTION} lines: split them into steps with names"


def test_no_line_of_sql_or_lua_is_wide() -> None:
    wide = [
        f"{path.relative_to(HOME)}:{number}"
        for path in sorted(HOME.rglob("*"))
        if path.suffix in (".sql", ".lua")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if len(line) > WIDEST
    ]
    assert not wide


def test_no_test_of_the_conformance_suite_hides_another() -> None:
    names = [name for part in BackendConformance.__mro__ for name in vars(part) if name.startswith("test_")]
    twice = sorted({name for name in names if names.count(name) > 1})
    assert len(names) > 400
    assert not twice, "of tests with the same name, only one would run"


def test_no_script_is_long() -> None:
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in HOME.rglob("*.lua")}
    long = {name: lines for name, lines in lengths.items() if lines > LONGEST_SCRIPT}
    assert lengths
    assert not long, f"more than {LONGEST_SCRIPT} lines: split them into parts with names"


def test_every_room_has_few_layers_that_name_all_of_it() -> None:
    """What each contract of ``pyproject.toml`` says is checked by import-linter."""
    settings = tomllib.loads((HOME.parents[1] / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    layered = [contract for contract in settings["contracts"] if contract["type"] == "layers"]
    assert not [one["name"] for one in layered if len(one["layers"]) > MOST_LAYERS or not one["exhaustive"]]
    rooms = {name.removeprefix("headrace.") for contract in layered for name in contract["containers"]}
    without_order = {"bridges", "cli", "contrib", "testing"}
    """Commands, and what stands beside each other: that there is no circle is enough."""
    assert rooms >= {path.parent.name for path in HOME.glob("*/__init__.py")} - without_order


def test_no_old_driver_of_postgresql_is_let_in() -> None:
    """Before psycopg 3.2.4, notifications that arrived during a query were dropped."""
    extras = tomllib.loads((HOME.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    drivers = [Requirement(one) for name in extras for one in extras[name] if one.startswith("psycopg")]
    assert drivers
    assert not [str(one) for one in drivers if one.specifier.contains("3.2.3")]


def test_every_package_says_what_lives_there() -> None:
    silent = [path for path in HOME.rglob("__init__.py") if not ast.get_docstring(ast.parse(path.read_text("utf-8")))]
    assert not silent


def test_the_tour_names_what_is_there() -> None:
    """Files are named from the package on, or from a folder that is named before."""
    tour = (HOME.parents[1] / "docs" / "explain" / "design.md").read_text("utf-8")
    homes = [
        "",
        *(f"backends/{name}" for name in ("", "sqlite", "postgres", "postgres/migrations", "redis", "streams")),
    ]
    gone = []
    for name, functions in re.findall(r"`([\w/]+\.(?:py|sql|lua))`((?:,? `\w[\w.]*\w`)*)", tour):
        found = [path for home in homes if (path := HOME / home / name).is_file()]
        told = "".join(path.read_text("utf-8") for path in found)
        gone += [] if found else [name]
        words = [word for word in re.findall(r"`([\w.]+)`", functions) if not word.endswith(".py")]
        gone += [f"{name} {word}" for word in words if not re.search(rf"\b{word.split('.')[-1]}\b", told)]
    assert not gone, "docs/explain/design.md names what is not there (any more)"


def test_words_are_few_and_told_once() -> None:
    page = (HOME.parents[1] / "docs" / "explain" / "words.md").read_text("utf-8")
    words = re.findall(r"^\| \*\*(.+?)\*\*", page, re.MULTILINE)
    assert 40 < len(words) == len(set(words)) <= 60


def test_what_stores_carry_is_alike_in_all_records() -> None:
    """Stores make these records by position."""
    for fields in (Leased.__struct_fields__, Record.__struct_fields__):
        assert fields[fields.index("lost") + 1 : fields.index("headers")] == CARRIED
