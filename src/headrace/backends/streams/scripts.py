"""The scripts of windows. Workers are woken as those of a store on Valkey are."""

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
        folder = files("headrace.backends")
        self.text = "\n".join(folder.joinpath(f"{part}.lua").read_text() for part in parts)
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


_OWN = "streams/lua"
SCRIPTS = {
    name: Script(f"{_OWN}/common", "redis/lua/signals", f"{_OWN}/guard", f"{_OWN}/{name}_main") for name in _NAMES
} | {name: Script(f"{_OWN}/common", f"{_OWN}/{name}_main") for name in ("init", "leave", "server")}
