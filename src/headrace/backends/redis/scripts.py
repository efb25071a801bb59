"""The scripts, and how they are called: by digest, or with their text if the server does not know it."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Any

from headrace.backends.redis.connections import Connections
from headrace.backends.redis.translate import Refused, translated

_JOBS = ("counts", "queues", "signals", "waiters", "jobs", "keys", "dead", "stored", "references")
_TURNS = ("shut", "rates", "lanes", "awake", "turns")
_INDEX = ("order", "policies", "ready", *_TURNS, "index", "groups")
_ALL = (*_JOBS, *_INDEX, "set_aside", "moves", "tenants", "ends", "settle")
_INSERT = ("cells", "replace", "insert")
_GOVERN = (*_ALL, "recall", "govern")
_FINISH = (*_INSERT, "send", "kinds", "finish")
_CLAIM = ("recall", "govern", "pick", "visits", "walk", "trim", "batch", "last_chance", "claim", "claim_answer")
_READ = ("queues", "jobs", "policies", *_TURNS, "keys")
_PARTS = {
    "insert": (*_JOBS, *_INDEX, "set_aside", "moves", "tenants", *_INSERT, "settle", "insert_main"),
    "insert_one": ("signals", "waiters", "insert_one_main"),
    "claim": ("runs_when_full", *_ALL, *_CLAIM, "claim_main"),
    "finish": ("runs_when_full", *_ALL, *_FINISH, "finish_main"),
    "finish_and_claim": ("runs_when_full", *_ALL, *_FINISH, *_CLAIM, "finish_and_claim_main"),
    "renew": ("runs_when_full", "jobs", "steady", "absence", "renew_main"),
    "reap": ("runs_when_full", "bounded", *_ALL, "recall", "steady", "absence", "reap_main"),
    "set_aside": ("runs_when_full", *_ALL, "set_aside_main"),
    "alter": ("runs_when_full", "bounded", *_ALL, "select", "send", "alter_main"),
    "pause": ("runs_when_full", *_GOVERN, "pause_main"),
    "fetch": (*_READ, "trim", "fetch_main"),
    "scan": (*_READ, "order", "select", "scan_main"),
    "stats": ("queues", "policies", "stats_main"),
    "oldest": ("oldest_main",),
    "referring": ("runs_when_full", "jobs", "stored", "references", "referring_main"),
    "swap": ("runs_when_full", "jobs", "stored", "references", "swap_main"),
    "sweep": ("runs_when_full", *_ALL, "removals", "held_results", "ended", "shares", "sweep_main"),
    "sweep_named": ("runs_when_full", *_ALL, "removals", "sweep_named_main"),
    "removals": ("removals_main",),
    "forget_removals": ("runs_when_full", "forget_removals_main"),
    "ends": ("order", "jobs", "held_results", "ends_main"),
    "documents": ("runs_when_full", "order", "documents_main"),
    "keys": ("runs_when_full", "keys_main"),
    "parts": ("order", "waiters", "parts_main"),
    "idle": ("runs_when_full", *_ALL, "idle_main"),
    "save": ("stops_when_full", "waiters", "send", "order", "schedules", "save_main"),
    "drop": ("runs_when_full", "waiters", "send", "order", "schedules", "save_main"),
    "find": ("order", "schedules", "find_main"),
    "due": ("order", "schedules", "due_main"),
    "plan": ("stops_when_full", *_ALL, *_INSERT, "send", "schedules", "ticks", "plan_main"),
    "history": ("ticks", "history_main"),
    "note": ("runs_when_full", "ticks", "note_main"),
    "planned": ("ticks", "planned_main"),
    "forget": ("runs_when_full", "ticks", "forget_main"),
    "policy": ("stops_when_full", *_GOVERN, "policy_main"),
    "steps": ("runs_when_full", *_GOVERN, "steps_main"),
    "limit": ("stops_when_full", *_GOVERN, "limit_main"),
    "policies": ("queues", "policies_main"),
    "tenants": ("jobs", "policies", *_TURNS, "tenants_main"),
    "group": ("group_main",),
    "sheets": ("tracks", "sheets_main"),
    "walk_sheets": ("tracks", "walk_sheets_main"),
    "write_sheets": ("stops_when_full", "tracks", "write_sheets_main"),
    "rewrite_sheets": ("runs_when_full", "tracks", "write_sheets_main"),
    "due_sheets": ("runs_when_full", "tracks", "due_sheets_main"),
    "tally_sheets": ("tally_sheets_main",),
    "leg": ("runs_when_full", "leg_main"),
    "depart": ("runs_when_full", *_ALL, "legs", "depart_main"),
    "parcels": ("order", "legs", "parcels_main"),
    "arrive": ("stops_when_full", *_ALL, "arrivals", "legs", "arrive_main"),
    "confirm": ("runs_when_full", "jobs", "legs", "confirm_main"),
    "ledger": ("ledger_main",),
    "held_keys": ("queues", "jobs", "keys", "held_keys_main"),
    "hold_keys": ("stops_when_full", "queues", "jobs", "keys", "hold_keys_main"),
    "add_ticks": ("stops_when_full", "ticks", "add_ticks_main"),
    # Only for stores with several shards.
    "outbox": ("runs_when_full", *_ALL, "traces", "outbox_main"),
    "receive": ("runs_when_full", *_ALL, "send", *_INSERT, "schedules", "arrivals", "receive_main"),
    "locate": ("jobs", "keys", "locate_main"),
    "taken": ("jobs", "keys", "taken_main"),
    "trace": ("stops_when_full", "traces", "trace_main"),
    "untrace": ("runs_when_full", "untrace_main"),
    "choose": ("runs_when_full", "jobs", "last_chance", "choose_main"),
    "peek": ("runs_when_full", "jobs", "order", "policies", "ready", "walk", "trim", "peek_main"),
    "expire": ("runs_when_full", *_ALL, "expire_main"),
    "overdue": ("jobs", "steady", "overdue_main"),
    "ended": ("runs_when_full", "jobs", "held_results", "ended", "ended_main"),
    "heaviest": ("jobs", "dead", "shares", "heaviest_main"),
    "give": ("runs_when_full", "jobs", "dead", "shares", "give_main"),
    "remove": ("runs_when_full", *_ALL, "removals", "remove_main"),
    "whose": ("order", "schedules", "whose_main"),
    "known": ("ticks", "known_main"),
}


class Script:
    """One script and its digest."""

    def __init__(self, name: str) -> None:
        folder = files(__package__).joinpath("lua")
        parts = [folder.joinpath(f"{part}.lua").read_text() for part in ("common", *_PARTS[name])]
        self.text = "\n".join(parts)
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


SCRIPTS = {name: Script(name) for name in _PARTS}
DIGESTS = {script.digest.encode(): name for name, script in SCRIPTS.items()}
"""The names of scripts by digest."""


async def run(connections: Connections, where: str, name: str, base: str, args: tuple[Any, ...]) -> Any:
    """Run a script on the keys that begin with ``base``."""
    script = SCRIPTS[name]
    try:
        try:
            return await connections.call(base, "EVALSHA", script.digest, 1, base, *args)
        except Refused as error:
            if error.code != "NOSCRIPT":
                raise
        return await connections.call(base, "EVAL", script.text, 1, base, *args)
    except Refused as error:
        raise translated(error, where, base=base) from error
