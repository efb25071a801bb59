"""A server process that belongs to this one."""

from __future__ import annotations

import os
import pwd
import random
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

_PORTS = range(10_000, 32_000)
"""Below those that the system gives to whoever connects: such a port is not taken before its server has started."""
_CHANCE = random.SystemRandom()
"""Not what tests seed, or all of their processes would draw the same."""


def free_port() -> int:
    """A port that nobody listens on just now."""
    [port] = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on just now, no two of them the same."""
    found: set[int] = set()
    while len(found) < count:
        port = _CHANCE.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.add(port)
    return [*found]


def unprivileged() -> dict[str, Any]:
    """How to start a child as somebody without rights, where this process has them all: some servers insist."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def give(path: str) -> None:
    """Make a directory theirs."""
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(path, nobody.pw_uid, nobody.pw_gid)


def children_of(parent: int) -> list[int]:
    """The processes that this one has started and that are still there."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _status(pid)[1:] == [str(parent)]]


def runs(pid: int) -> bool:
    """Whether there is such a process, dead ones that nobody has buried aside."""
    return _status(pid)[:1] not in ([], ["Z"])


def _status(pid: int) -> list[str]:
    """Its state and its parent; nothing when it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    return []
