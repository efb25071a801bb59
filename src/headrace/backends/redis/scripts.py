"""The scripts: one for each operation, each sent by its digest, and whole where the server does not know it."""

from __future__ import annotations

import hashlib
from importlib.resources import files

_PARTS = {
    "insert": ("insert", "insert_op"),
    "claim": ("claim", "claim_op", "claim_main"),
    "finish": ("select", "insert", "finish", "finish_main"),
    "turn": ("select", "insert", "finish", "claim", "claim_op", "turn_main"),
    "renew": ("renew_main",),
    "reap": ("reap_main",),
    "alter": ("select", "alter_main"),
    "configure": ("configure_main",),
    "fetch": ("fetch_main",),
    "scan": ("select", "scan_main"),
    "stats": ("stats_main",),
    "sweep": ("sweep_main",),
}


class Script:
    """One script and its digest."""

    def __init__(self, name: str, *, header: str) -> None:
        folder = files(__package__).joinpath("lua")
        parts = [folder.joinpath(f"{part}.lua").read_text() for part in ("common", *_PARTS[name])]
        self.text = header + "\n".join(parts)
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


def load(header: str) -> dict[str, Script]:
    """All of them."""
    return {name: Script(name, header=header) for name in _PARTS}
