"""Settings in the environment: ``HEADRACE_WORKER__CONCURRENCY=20``."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, get_type_hints

from msgspec import Struct

from headrace.errors import ConfigError

log = logging.getLogger("headrace")

Length = int | float | str
"""A duration as it may stand in TOML or the environment: seconds, or a string like ``"30s"``."""
Path = tuple[str, ...]

PREFIX = "HEADRACE_"
_OF_THE_CLI = "HEADRACE_CLI_"
"""Options of the command line."""
_OF_A_SERVICE = re.compile(
    r"HEADRACE_(.*_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""What Kubernetes and Docker links set for services called ``headrace`` or ``headrace-…``."""
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")
_NEAR, _FAR = 0.85, 0.6
"""How similar a name must be to be taken for a setting, and to be named in a hint."""
_SHORT = 4
"""In names this short, a single wrong letter counts."""
_warned: set[str] = set()


def is_ours(variable: str) -> bool:
    """Whether a variable may be meant as a setting.

    >>> is_ours("HEADRACE_URL"), is_ours("HEADRACE_DB_SERVICE_HOST")
    (True, False)
    """
    ours = variable.startswith(PREFIX) and not variable.startswith(_OF_THE_CLI)
    return ours and _OF_A_SERVICE.fullmatch(variable) is None


def from_env(env: Mapping[str, str], settings: type[Struct]) -> dict[str, Any]:
    """The settings that variables hold, nested."""
    known = dict(_named(settings))
    found: dict[str, Any] = {}
    for variable, value in env.items():
        if not is_ours(variable):
            continue
        path = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        if path not in known:
            _tell_unknown(variable, path, known)
            continue
        *parents, leaf = path
        place = found
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{variable}: {parent} is a single value and cannot have parts; unset one of them")
        if isinstance(place.get(leaf), dict):
            raise ConfigError(f"{variable}: it has parts and cannot be a single value; unset one of them")
        place[leaf] = float(value) if known[path] == Length and _SECONDS.fullmatch(value) else value
    return found


def parts_of(settings: type[Struct]) -> dict[str, type[Struct]]:
    """The parts that have settings of their own, by name."""
    hints = get_type_hints(settings).items()
    return {name: kind for name, kind in hints if isinstance(kind, type) and issubclass(kind, Struct)}


def _named(settings: type[Struct], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All settings and parts, with their types."""
    for name, kind in get_type_hints(settings).items():
        yield (*path, name), kind
    for name, part in parts_of(settings).items():
        yield from _named(part, (*path, name))


def _tell_unknown(variable: str, path: Path, known: Mapping[Path, Any]) -> None:
    """Refuse a variable that was meant as a setting. Warn once about any other: something else may use it."""
    single = [one for one in known if all(other[:-1] != one for other in known)]
    text = f"the environment variable {variable} is not a setting"
    meant = [one for one in single if one[-1] == path[-1]] or _similar(path, single, _NEAR)
    if meant:
        raise ConfigError(f"settings: {text}; did you mean {_variables(meant, ' or ')}?")
    if len(path) > 1 and path[:1] in known:
        beside = [one for one in single if one[0] == path[0]]
        raise ConfigError(f"settings: {text}; there are: {_variables(beside, ', ')}")
    if variable not in _warned:
        _warned.add(variable)
        guess = "".join(f"; did you mean {_variables([one])}?" for one in _similar(path, single, _FAR))
        log.warning("%s and is ignored%s", text, guess)


def _similar(path: Path, single: Iterable[Path], cutoff: float) -> list[Path]:
    """The setting with the most similar name, whether its parts are joined by one underscore or two, or left out."""
    given = "_".join(path)
    full = {"_".join(one): one for one in single}
    last = {one[-1]: one for one in full.values()}
    for names, least in ((full, _FAR if len(given) <= _SHORT else cutoff), (last, cutoff)):
        if close := get_close_matches(given, names, 1, least):
            return [names[close[0]]]
    return []


def _variables(paths: Iterable[Path], joint: str = "") -> str:
    return joint.join(PREFIX + "__".join(path).upper() for path in paths)
