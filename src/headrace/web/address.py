"""Where the HTTP server listens."""

from __future__ import annotations

import ipaddress
import re
import socket
from pathlib import Path

from msgspec import Struct

from headrace.errors import ConfigError
from headrace.text import shown

_FORM = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]*):)?(?P<port>[0-9]{1,5})")
LOOPBACK = "127.0.0.1"


class Address(Struct, frozen=True):
    """A host and a port, or the path of a Unix socket."""

    host: str
    port: int
    path: str = ""

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return bool(self.path) or is_loopback(self.host)

    def listen(self) -> socket.socket:
        """A socket that listens there."""
        try:
            if self.path:
                Path(self.path).unlink(missing_ok=True)
                listening = socket.socket(socket.AF_UNIX)
                listening.bind(self.path)
                Path(self.path).chmod(0o600)
                listening.listen(128)
                return listening
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            listening = socket.create_server((self.host, self.port), family=family, backlog=128)
            # What it accepts inherits this. Event loops do not see that sockets of a listener speak TCP, and without it
            # the body of an answer waits for the client to acknowledge the headers.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return listening
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"http.address: cannot listen at {self}: {error}; choose another address") from error

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"unix:{self.path}" if self.path else f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """An address from ``host:port``, ``port`` (of this machine only), or ``unix:/path``.

    >>> parse_address("9464").loopback, parse_address("0.0.0.0:80").loopback
    (True, False)
    """
    if text.startswith("unix:") and len(text) > 5:
        return Address("", 0, text[5:])
    found = _FORM.fullmatch(text)
    if found is None or int(found["port"]) > 65_535:
        raise ConfigError(f"http.address: expected host:port, a port, or unix:/path, got {shown(text)}")
    host = LOOPBACK if found["host"] is None else found["host"].strip("[]") or "0.0.0.0"
    return Address(host, int(found["port"]))


def is_loopback(host: str) -> bool:
    """Whether the name or address stands for this machine.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("localhost.evil.example")
    (True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_reach(address: Address, *, protected: bool) -> None:
    """Refuse an address that others can reach, unless tokens protect it."""
    if not (address.loopback or protected):
        raise ConfigError(
            f"http.address: {address} can be reached by others, and there are no tokens; set http.tokens, or listen at "
            f"{LOOPBACK}:{address.port}"
        )
