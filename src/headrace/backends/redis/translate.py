"""What the server says, in our words."""

from __future__ import annotations

import re
from ssl import SSLError

from headrace.backends.refusal import NotLetIn
from headrace.errors import BackendError, ConfigError, StoreFull, Unavailable

_KIND = re.compile(r"(?:^|[ :]-?)(" + "|".join(
    (
        "OOM", "WRONGPASS", "NOAUTH", "NOPERM", "AUTH", "ACL failure", "ASK", "BUSY", "CLUSTERDOWN", "LOADING",
        "MASTERDOWN", "MISCONF", "MOVED", "NOREPLICAS", "READONLY", "TRYAGAIN", "UNBLOCKED", "UNKILLABLE",
        "max number of clients",
    )
) + r")\b")  # fmt: skip
"""What kind of refusal it is; one from within a script may come with words before the server's own."""


class Refused(Exception):
    """The server's answer to a request is that it did not do it."""

    @property
    def code(self) -> str:
        """Its first word, which says what kind of refusal it is."""
        return str(self).partition(" ")[0]


def translated(error: Exception, where: str) -> Exception:
    """The error to raise; itself where it is ours already."""
    said = str(error).strip().partition("\n")[0] or type(error).__name__
    if isinstance(error, Refused):
        found = _KIND.search(said)
        match found and found[1]:
            case None if "DB index is out of range" in said:
                return ConfigError(f"{where}: the server has no such database: {said}")
            case None:
                return BackendError(f"{where}: {said}")
            case "OOM":
                return StoreFull(
                    f"{where} has reached its maxmemory: {said}. Nothing was stored; work goes on by itself"
                )
            case "WRONGPASS" | "NOAUTH" | "NOPERM" | "AUTH" | "ACL failure":
                return NotLetIn(
                    f"{where} refuses this user: {said}. Look at the user and password in the URL, and at its ACL"
                )
        return Unavailable(f"{where} cannot serve just now: {said}")
    if isinstance(error, SSLError):
        return ConfigError(f"{where}: no TLS connection: {said}. Look at ca, cert, key and verify in the URL")
    if isinstance(error, UnicodeError):
        return ConfigError(f"{where}: expected the name of a host, got one that no host can have")
    if isinstance(error, OSError):
        return Unavailable(f"{where} cannot serve just now: {said}")
    return error
