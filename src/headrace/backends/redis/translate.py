"""Refusals of the server as errors of the core."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from ssl import SSLError

from headrace.backends.refusal import NotLetIn
from headrace.errors import BackendError, ConfigError, PayloadTooLarge, SchemaMismatch, StoreFull, Unavailable

LOGIN = "Check the user and password in the URL, and the user's ACL"
_KIND = re.compile(r"(?:^|[ :]-?)(" + "|".join(
    (
        "OOM", "WRONGPASS", "NOAUTH", "NOPERM", "AUTH", "ACL failure", "ASK", "BUSY", "CLUSTERDOWN", "LOADING",
        "IOERR", "INPROG", "MASTERDOWN", "MISCONF", "MOVED", "NOREPLICAS", "READONLY", "TRYAGAIN", "UNBLOCKED",
        "UNKILLABLE", "WRONGTYPE", "max number of clients", "unknown command", "[Ss]cript killed",
        "string exceeds maximum allowed size", "invalid bulk length",
    )
) + r")\b")  # fmt: skip
"""The kind of a refusal. From within a script other words may come before the server's own."""
_NOISE = re.compile(
    r"^ERR Error running script \(call to \S+\): |@user_script: ?\d+: -?|,? with args beginning with.*"
    r"|\.? script: (?:\w+, )?on @user_script:\d+\.?$"
)
"""Where it happened in which script, and the arguments of the command: neither helps the reader."""


class Refused(Exception):
    """The server refused a request."""

    @property
    def code(self) -> str:
        """The first word, which says what kind of refusal it is."""
        return str(self).partition(" ")[0]


def translated(error: Exception, where: str, *, base: str = "", login: str = LOGIN) -> Exception:
    """The error to raise; the error itself if it is one of the core already. ``base`` is what the keys begin with, and
    ``login`` says what to do if the login is refused."""
    said = _NOISE.sub("", str(error).strip().partition("\n")[0]).rstrip(". ") or type(error).__name__
    if isinstance(error, Refused):
        return _refusal(said, where, base.partition("{")[0], login)
    if isinstance(error, SSLError):
        return ConfigError(f"{where}: no TLS connection: {said}. Check ca, cert, key and verify in the URL")
    if isinstance(error, UnicodeError):
        return ConfigError(f"{where}: expected a host name, got one that no host can have")
    if isinstance(error, OSError):
        return Unavailable(f"{where} cannot serve just now: {said}")
    return error


@contextmanager
def refusals(where: str, base: str = "") -> Iterator[None]:
    """Raise what the server refuses within as an error of the core."""
    try:
        yield
    except Refused as error:
        raise translated(error, where, base=base) from error


def _refusal(said: str, where: str, prefix: str, login: str) -> Exception:
    found = _KIND.search(said)
    match found and found[1]:
        case None if "DB index is out of range" in said:
            return ConfigError(f"{where}: the server has no such database: {said}")
        case None:
            return BackendError(f"{where}: {said}")
        case "unknown command":
            return ConfigError(
                f"{where}: the server does not know a command that Headrace needs: {said}. If it is a "
                "sentinel, its URL begins with redis+sentinel:// and has ?master=NAME"
            )
        case "string exceeds maximum allowed size" | "invalid bulk length":
            return PayloadTooLarge(f"{where} cannot store a cell of this size; nothing was stored: {said}")
        case "OOM":
            return StoreFull(
                f"{where} is full: the server has reached its maxmemory. Nothing was stored; work goes on by itself "
                "once there is room"
            )
        case "WRONGTYPE":
            return SchemaMismatch(
                f"{where}: expected only keys of Headrace under the prefix {prefix!r}, got one of another type "
                f"({said}). Other software uses this prefix: give this store its own, ?prefix=NAME"
            )
        case "WRONGPASS" | "NOAUTH" | "NOPERM" | "AUTH" | "ACL failure":
            if prefix and re.search("access .*(key|channel)", said):
                login = f"Add to its ACL: ~{prefix}{{* &{prefix}:*"
            return NotLetIn(f"{where} refuses this user: {said}. {login}")
    return Unavailable(f"{where} cannot serve just now: {said}")
