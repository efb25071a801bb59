"""What a user must be allowed to do."""

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
"""All that is asked of a server, directly or by a script, beside what only a cluster or sentinels are asked."""


async def lacking(call: Callable[..., Awaitable[Any]], base: str) -> list[str]:
    """Which commands the user may not run on the keys and channels of the store, as an ACL names them. In the middle of
    a script it would be too late to find out: what came before stays done."""
    text = files(__package__).joinpath("lua", "rights.lua").read_text()
    found = await call("EVAL", text, 1, base, base.partition("{")[0] + ":inbox:", *COMMANDS)
    return [name.decode().lower().replace(" ", "|") for name in found]
