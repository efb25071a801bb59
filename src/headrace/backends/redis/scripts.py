"""The scripts, and how they are called: by digest, with their text where the server does not know it."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Any

from headrace.backends.redis.lines import Lines
from headrace.backends.redis.translate import Refused, translated

_JOBS = ("counts", "queues", "signals", "waiters", "jobs", "keys")
_ALL = (*_JOBS, "places", "tenants", "ends")
_PARTS = {
    "insert": (*_JOBS, "tenants", "insert", "insert_op"),
    "claim": ("goes_on", *_ALL, "order", "claim", "claim_op", "claim_main"),
    "finish": ("goes_on", *_ALL, "insert", "send", "finish", "finish_main"),
    "turn": ("goes_on", *_ALL, "insert", "send", "finish", "order", "claim", "claim_op", "turn_main"),
    "renew": ("goes_on", "jobs", "renew_main"),
    "reap": ("goes_on", *_ALL, "reap_main"),
    "alter": ("goes_on", *_ALL, "order", "select", "send", "alter_main"),
    "configure": ("goes_on", "queues", "signals", "configure_main"),
    "fetch": ("queues", "jobs", "keys", "fetch_main"),
    "scan": ("queues", "jobs", "keys", "order", "select", "scan_main"),
    "stats": ("queues", "stats_main"),
    "sweep": ("goes_on", *_ALL, "held", "sweep_main"),
    "save": ("must_fit", "waiters", "send", "schedules", "save_main"),
    "drop": ("goes_on", "waiters", "send", "schedules", "save_main"),
    "find": ("schedules", "find_main"),
    "due": ("schedules", "due_main"),
    "plan": ("must_fit", *_ALL, "insert", "send", "schedules", "ledger", "plan_main"),
    "history": ("ledger", "history_main"),
    "note": ("goes_on", "ledger", "note_main"),
    "planned": ("ledger", "planned_main"),
    "forget": ("goes_on", "ledger", "forget_main"),
    # What only the shards of a cluster ask each other, and are asked.
    "outbox": ("goes_on", *_ALL, "outbox_main"),
    "receive": ("goes_on", *_ALL, "send", "insert", "schedules", "receive_main"),
    "locate": ("jobs", "keys", "locate_main"),
    "unmark": ("goes_on", "unmark_main"),
    "peek": ("jobs", "order", "peek_main"),
    "expire": ("goes_on", *_ALL, "expire_main"),
    "overdue": ("jobs", "overdue_main"),
    "ended": ("goes_on", "jobs", "held", "ended_main"),
    "remove": ("goes_on", *_ALL, "remove_main"),
    "whose": ("schedules", "whose_main"),
    "known": ("ledger", "known_main"),
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
        raise translated(error, where, base=base) from error
