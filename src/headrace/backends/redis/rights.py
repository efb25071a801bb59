"""The rights that a user needs."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

from headrace.backends.redis.scripts import SCRIPTS

_SENT = (
    "INFO", "GET", "SETNX", "TIME", "EVAL", "EVALSHA", "CLIENT ID", "CLIENT UNBLOCK", "BLPOP", "RPUSH", "SUBSCRIBE",
    "PING",
)  # fmt: skip
_CALLED = re.compile(r"\b(?:call|many|ask)\(\s*'([A-Z]+)'")
COMMANDS = tuple(sorted({*_SENT, *_CALLED.findall("".join(script.text for script in SCRIPTS.values()))}))
"""All commands that are sent or called by a script, except those that only clusters or sentinels get."""


async def lacking(call: Callable[..., Awaitable[Any]], base: str) -> list[str]:
    """The rights that the user needs for this store and does not have, as an ACL names them. In the middle of a script
    it would be too late to find out: what came before stays done. Which commands the user may run on keys is only known
    if it may use the keys."""
    text = files(__package__).joinpath("lua", "rights.lua").read_text()
    prefix = base.partition("{")[0]
    found = await call("EVAL", text, 0, f"{base}:-", f"{prefix}:inbox:", *COMMANDS)
    return [_rule(name.decode(), prefix) for name in found]


def _rule(lacking: str, prefix: str) -> str:
    if lacking in ("~", "&"):
        return f"~{prefix}{{*" if lacking == "~" else f"&{prefix}:*"
    return "+" + lacking.lower().replace(" ", "|")
