"""What the server says, in our words."""

from __future__ import annotations

import re
from ssl import SSLError

from headrace.backends.refusal import NotLetIn
from headrace.errors import BackendError, ConfigError, PayloadTooLarge, SchemaMismatch, StoreFull, Unavailable

LOGIN = "Look at the user and password in the URL, and at its ACL"
_KIND = re.compile(r"(?:^|[ :]-?)(" + "|".join(
    (
        "OOM", "WRONGPASS", "NOAUTH", "NOPERM", "AUTH", "ACL failure", "ASK", "BUSY", "CLUSTERDOWN", "LOADING",
        "IOERR", "INPROG", "MASTERDOWN", "MISCONF", "MOVED", "NOREPLICAS", "READONLY", "TRYAGAIN", "UNBLOCKED",
        "UNKILLABLE", "WRONGTYPE", "max number of clients", "unknown command", "[Ss]cript killed",
        "string exceeds maximum allowed size", "invalid bulk length",
    )
) + r")\b")  # fmt: skip
"""What kind of refusal it is; one from within a script may come with words before the server's own."""
_NOISE = re.compile(
    r"^ERR Error running script \(call to \S+\): |@user_script: ?\d+: -?|,? with args beginning with.*"
    r"|\.? script: (?:\w+, )?on @user_script:\d+\.?$"
)
"""Where in which script it happened, and what the command was to do: neither is for the reader."""


class Refused(Exception):
    """The server's answer to a request is that it did not do it."""

    @property
    def code(self) -> str:
        """Its first word, which says what kind of refusal it is."""
        return str(self).partition(" ")[0]


def translated(error: Exception, where: str, *, base: str = "", login: str = LOGIN) -> Exception:
    """The error to raise; itself where it is ours already. ``base`` is what the keys begin with that it was about, and
    ``login`` what to do if the user is not let in."""
    said = _NOISE.sub("", str(error).strip().partition("\n")[0]).rstrip(". ") or type(error).__name__
    if isinstance(error, Refused):
        return _refusal(said, where, base.partition("{")[0], login)
    if isinstance(error, SSLError):
        return ConfigError(f"{where}: no TLS connection: {said}. Look at ca, cert, key and verify in the URL")
    if isinstance(error, UnicodeError):
        return ConfigError(f"{where}: expected the name of a host, got one that no host can have")
    if isinstance(error, OSError):
        return Unavailable(f"{where} cannot serve just now: {said}")
    return error


def _refusal(said: str, where: str, prefix: str, login: str) -> Exception:
    found = _KIND.search(said)
    match found and found[1]:
        case None if "DB index is out of range" in said:
            return ConfigError(f"{where}: the server has no such database: {said}")
        case None:
            return BackendError(f"{where}: {said}")
        case "unknown command":
            return ConfigError(
                f"{where}: what answers there does not know a command that Headrace needs: {said}. If it is a "
                "sentinel, its URL begins with redis+sentinel:// and has ?master=NAME"
            )
        case "string exceeds maximum allowed size" | "invalid bulk length":
            return PayloadTooLarge(f"{where} takes no cell of this size; nothing was stored: {said}")
        case "OOM":
            return StoreFull(
                f"{where} is full: the server has reached its maxmemory. Nothing was stored; work goes on by itself "
                "once there is room"
            )
        case "WRONGTYPE":
            return SchemaMismatch(
                f"{where}: expected only keys of Headrace under the prefix {prefix!r}, got one of another type "
                f"({said}). Something else's keys are in the way: give this store a prefix of its own, ?prefix=NAME"
            )
        case "WRONGPASS" | "NOAUTH" | "NOPERM" | "AUTH" | "ACL failure":
            if prefix and re.search("access .*(key|channel)", said):
                login = f"Add to its ACL: ~{prefix}{{* &{prefix}:*"
            return NotLetIn(f"{where} refuses this user: {said}. {login}")
    return Unavailable(f"{where} cannot serve just now: {said}")
