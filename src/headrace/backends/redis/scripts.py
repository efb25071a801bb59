"""The scripts, and how they are called: by digest, with their text where the server does not know it."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Any

from headrace.backends.redis.lines import Lines
from headrace.backends.redis.translate import Refused, translated

_PARTS = {
    "insert": ("insert", "insert_op"),
    "claim": ("goes_on", "claim", "claim_op", "claim_main"),
    "finish": ("goes_on", "insert", "send", "finish", "finish_main"),
    "turn": ("goes_on", "insert", "send", "finish", "claim", "claim_op", "turn_main"),
    "renew": ("goes_on", "renew_main"),
    "reap": ("goes_on", "reap_main"),
    "alter": ("goes_on", "select", "send", "alter_main"),
    "configure": ("goes_on", "configure_main"),
    "fetch": ("fetch_main",),
    "scan": ("select", "scan_main"),
    "stats": ("stats_main",),
    "sweep": ("goes_on", "sweep_main"),
    "outbox": ("goes_on", "outbox_main"),
    "receive": ("goes_on", "send", "insert", "receive_main"),
    "locate": ("locate_main",),
    "unmark": ("goes_on", "marks", "unmark_main"),
    "peek": ("peek_main",),
    "expire": ("goes_on", "expire_main"),
    "overdue": ("marks", "overdue_main"),
    "ended": ("ended_main",),
    "remove": ("goes_on", "remove_main"),
}


class Script:
    """One script and its digest."""

    def __init__(self, name: str) -> None:
        folder = files(__package__).joinpath("lua")
        parts = [folder.joinpath(f"{part}.lua").read_text() for part in ("common", *_PARTS[name])]
        self.text = "\n".join(parts)
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


SCRIPTS = {name: Script(name) for name in _PARTS}


async def run(lines: Lines, where: str, name: str, base: str, args: tuple[Any, ...]) -> Any:
    """Run a script on the keys that begin with ``base``."""
    script = SCRIPTS[name]
    try:
        try:
            return await lines.call(base, "EVALSHA", script.digest, 1, base, *args)
        except Refused as error:
            if error.code != "NOSCRIPT":
                raise
        return await lines.call(base, "EVAL", script.text, 1, base, *args)
    except Refused as error:
        raise translated(error, where) from error
