"""What libpq's service files say: options of a connection, under a name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_FOLDERS = ("/etc/postgresql-common", "/etc/sysconfig/pgsql")
"""Where the libpq of a system looks, if ``PGSYSCONFDIR`` does not say."""


def service_options(given: Mapping[str, Any]) -> dict[str, str]:
    """What the service that these options or ``PGSERVICE`` name says, in addition to them. Nothing of a service that
    is not found here: libpq may know it by LDAP, or from a folder of its own."""
    name = str(given.get("service") or os.environ.get("PGSERVICE", ""))
    found = (_section(path, name) for path in _files()) if name else ()
    return next((options for options in found if options is not None), {})


def _files() -> Iterator[Path]:
    own = os.environ.get("PGSERVICEFILE")
    yield Path(own) if own else Path.home() / ".pg_service.conf"
    folder = os.environ.get("PGSYSCONFDIR")
    for place in (folder,) if folder else _FOLDERS:
        yield Path(place) / "pg_service.conf"


def _section(path: Path, name: str) -> dict[str, str] | None:
    """The options under this name; None if there are none."""
    options: dict[str, str] | None = None
    with suppress(OSError):
        for line in map(str.strip, path.read_text(errors="replace").splitlines()):
            if line.startswith("["):
                if options is not None:
                    break
                options = {} if line.startswith(f"[{name}]") else None
            elif options is not None and "=" in line and not line.startswith(("#", "ldap:")):
                key, _, value = line.partition("=")
                options.setdefault(key, value)
    return options
