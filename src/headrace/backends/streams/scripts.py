"""The scripts of windows."""

from __future__ import annotations

import hashlib
from importlib.resources import files

_NAMES = (
    "beat", "begin", "claim", "close", "feed", "feeds", "find", "health", "held", "overdue", "prune", "push", "queues",
    "renew", "settle", "shut", "tell", "unknown",
)  # fmt: skip


class Script:
    """One script and its digest."""

    def __init__(self, *parts: str) -> None:
        folder = files(__package__).joinpath("lua")
        self.text = "\n".join(folder.joinpath(f"{part}.lua").read_text() for part in parts)
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


SCRIPTS = {name: Script("common", "guard", f"{name}_main") for name in _NAMES} | {
    name: Script("common", f"{name}_main") for name in ("init", "leave", "server")
}
