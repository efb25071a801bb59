"""How the way to the server is kept from others' eyes, where the URL does not say."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from headrace.backends.loopback import is_loopback
from headrace.backends.service_file import service_options

_IN_CLEAR = ("disable", "allow", "prefer")
_AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def secured(given: Mapping[str, Any]) -> dict[str, str]:
    """What to add to the options of a URL. A server on another machine has to show a certificate for its name, by an
    authority that this system trusts; whoever wants it otherwise says so, by ``sslmode``."""
    said = {**service_options(given), **given}
    if "sslmode" in said or "PGSSLMODE" in os.environ or not _is_far(said):
        return {}
    return {"sslmode": "verify-full"} | ({} if _has_authority(said) else {"sslrootcert": _authorities()})


def in_clear(given: Mapping[str, Any]) -> str:
    """The ``sslmode`` by which what is sent to another machine may go in clear; empty if it never does."""
    said = {**service_options(given), **given}
    mode = said.get("sslmode") or os.environ.get("PGSSLMODE", "")
    return str(mode) if mode in _IN_CLEAR and _is_far(said) else ""


def _is_far(given: Mapping[str, Any]) -> bool:
    """Whether one of the hosts may be another machine."""
    names, addresses = _said(given, "host", "PGHOST"), _said(given, "hostaddr", "PGHOSTADDR")
    return not all(is_loopback(address or name) for name, address in zip_longest(names, addresses, fillvalue=""))


def _said(given: Mapping[str, Any], name: str, variable: str) -> list[str]:
    return str(given.get(name) or os.environ.get(variable, "")).split(",")


def _has_authority(given: Mapping[str, Any]) -> bool:
    own = Path.home() / ".postgresql" / "root.crt"
    return "sslrootcert" in given or "PGSSLROOTCERT" in os.environ or own.exists()


def _authorities() -> str:
    """The file of those that this system trusts. libpq's own word for it, ``system``, means nothing to the OpenSSL of
    psycopg's binary, which looks in a place of its own."""
    known = (ssl.get_default_verify_paths().cafile, *_AUTHORITIES)
    return next((path for path in known if path and Path(path).is_file()), "system")
