"""Where a wrong setting comes from: an option, a variable, or a file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace import Settings
from headrace.api.connection import open_backend
from headrace.core.environment import is_ours
from headrace.errors import ConfigError


def origin(error: ConfigError, url: str | None) -> str:
    """Where the bad setting comes from, or empty if unknown; ``url`` is that of ``--url``.

    Tries each source by itself: the one that raises the same error is it.
    """
    return next((where for where, message in _errors(url) if message == str(error)), "")


def _errors(url: str | None) -> Iterator[tuple[str, str]]:
    if url is not None:
        yield "--url", _error({"url": url}, env={}, toml={})
    for name, value in os.environ.items():
        if is_ours(name):
            yield f"the variable {name}", _error({}, env={name: value}, toml={})
    yield settings_file(), _error({}, env={}, toml=None)


def _error(given: dict[str, Any], *, env: Mapping[str, str], toml: Mapping[str, Any] | None) -> str:
    try:
        open_backend(Settings.load(given, env=env, toml=toml).url)
    except ConfigError as error:
        return str(error)
    return ""


def settings_file() -> str:
    """The file that settings are read from."""
    own = Path("headrace.toml")
    try:
        empty = not own.is_file() or not tomllib.loads(own.read_text("utf-8"))
    except ValueError:
        empty = False
    return "[tool.headrace] in pyproject.toml" if empty else str(own)
