"""Finds and imports the modules that an app's tasks are in."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

from headrace.core.names import did_you_mean
from headrace.errors import ConfigError
from headrace.text import shown


def check_pattern(given: object) -> str:
    """A module's dotted name; ``*`` in it stands for any one name, ``**`` for any number of them.

    >>> check_pattern("shop.*.tasks")
    'shop.*.tasks'
    """
    if isinstance(given, str):
        parts = given.split(".")
        if parts[0].isidentifier() and all(part.replace("*", "a").isidentifier() for part in parts):
            return given
    raise ConfigError(
        f"include: expected the dotted name of a module like 'shop.emails', or a pattern like 'shop.*.tasks' or "
        f"'shop.**', got {shown(given)}"
    )


def import_all(patterns: Iterable[str]) -> list[str]:
    """Import every module that the patterns name, and return their names. Raises ``ConfigError`` if one names none;
    what a module itself raises is left as it is."""
    found = [name for pattern in patterns for name in modules_of(pattern)]
    for name in found:
        import_module(name)
    return found


def modules_of(pattern: str) -> list[str]:
    """The modules that a pattern names. None of them is imported, except the packages above them."""
    parts = pattern.split(".")
    fixed = next((i for i, part in enumerate(parts) if "*" in part), len(parts))
    name = ".".join(parts[:fixed])
    try:
        spec = find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        spec = None
    if spec is None:
        raise ConfigError(f"include: there is no module {name!r}{_near(name)}; {_looked()}")
    if fixed == len(parts):
        return [name]
    if spec.submodule_search_locations is None:
        raise ConfigError(f"include: {pattern!r}: {name} is a module, not a package, so there is nothing below it")
    found = list(dict.fromkeys(_below(name, spec.submodule_search_locations, parts[fixed:])))
    if not found:
        raise ConfigError(f"include: no module matches {pattern!r} below {', '.join(spec.submodule_search_locations)}")
    return found


def _below(package: str, places: Iterable[str], parts: Sequence[str]) -> Iterator[str]:
    places = list(places)
    head, rest = parts[0], parts[1:]
    if head == "**" and rest:
        yield from _below(package, places, rest)
    for module in sorted(iter_modules(places), key=lambda found: found.name):
        if module.name == "__main__":
            continue
        full = f"{package}.{module.name}"
        deeper = [str(Path(place) / module.name) for place in places] if module.ispkg else []
        if head == "**":
            if not rest:
                yield full
            yield from _below(full, deeper, parts) if deeper else ()
        elif fnmatchcase(module.name, head):
            if not rest:
                yield full
            elif deeper:
                yield from _below(full, deeper, rest)


def _near(name: str) -> str:
    """A hint at a module beside it that has a similar name."""
    package, _, last = name.rpartition(".")
    try:
        spec = find_spec(package) if package else None
    except ImportError:
        spec = None
    places = None if spec is None else spec.submodule_search_locations
    return did_you_mean(last, [module.name for module in iter_modules(places)]) if places else ""


def _looked() -> str:
    shown_path = ", ".join(entry or str(Path.cwd()) for entry in sys.path[:3])
    return f"looked in {shown_path}{' and the rest of sys.path' if len(sys.path) > 3 else ''}"
