"""Whether a server is on this machine, where nobody else can listen in on the way to it."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether a host is this machine: by a name or an address of its loopback, or as a socket of the file system.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.2", "::1", "/run/postgresql", "db", "10.0.0.1")]
    [True, True, True, True, False, False]
    """
    if not host or host[0] in "/@" or host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False
