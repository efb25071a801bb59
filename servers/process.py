"""A server process that belongs to this one."""

from __future__ import annotations

import os
import pwd
import socket
from typing import Any


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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
