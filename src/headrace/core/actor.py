"""Who asks for something, as logs name them."""

from __future__ import annotations

import getpass
import socket


def local_actor() -> str:
    """The user of this process, and the machine."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
