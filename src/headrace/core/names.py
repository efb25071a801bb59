"""Names: of queues, tasks, tenants and keys, and of workers."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection
from difflib import get_close_matches
from random import Random

from headrace.errors import ConfigError, InvalidJob
from headrace.text import shown

LONGEST = 1_024
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def check_name(name: object, what: str, *, empty: bool = False) -> str:
    """The name, if every store can take it; names are data, so almost anything goes.

    >>> check_name("mail:welcome/v2", "queue")
    'mail:welcome/v2'
    """
    if not isinstance(name, str):
        raise InvalidJob(f"{what}: expected a string, got {type(name).__name__} {shown(name)}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidJob(f"{what}: {shown(name)} contains a lone surrogate, which is not text") from None
    if size > LONGEST:
        raise InvalidJob(f"{what}: expected at most {LONGEST} bytes in UTF-8, got {size}")
    if "\0" in name:
        raise InvalidJob(f"{what}: {shown(name)} contains a NUL character")
    if not name and not empty:
        raise InvalidJob(f"{what}: expected a name, got an empty string")
    return name


def check_queue(name: object, what: str = "queue") -> str:
    """The name, if jobs may go to a queue of that name. Control characters are refused: a stray line end would send
    jobs where no worker listens. Existing queues of any name can still be worked on, looked at and emptied.

    >>> check_queue("mail")
    'mail'
    """
    checked = check_name(name, what)
    if _CONTROL.search(checked):
        raise InvalidJob(f"{what}: {shown(name)} contains a control character; remove line ends, tabs and the like")
    return checked


def did_you_mean(name: str, known: Collection[str]) -> str:
    """The hint about a name that resembles another; empty if none does.

    >>> did_you_mean("jiter", ["jitter", "grace"])
    " (did you mean 'jitter'?)"
    """
    close = get_close_matches(name, known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def refuse_unknown(given: Collection[str], known: Collection[str], what: str = "option") -> None:
    """Raise ``ConfigError`` for the first name that is not known."""
    if unknown := sorted(set(given) - set(known)):
        hint = did_you_mean(unknown[0], known)
        raise ConfigError(f"unknown {what} {unknown[0]!r}{hint}; there are: {', '.join(known)}")


def unknown_task(name: str, known: Collection[str]) -> str:
    """The message about a task that an app does not have.

    >>> unknown_task("send", ["shop.send", "shop.pay"])
    "this app has no task 'send' (did you mean 'shop.send'?)"
    """
    ends = sorted(one for one in known if one.endswith(f".{name}"))
    meant = did_you_mean(name, known) if not ends else f" (did you mean {ends[0]!r}?)"
    meant = meant or f"; it has: {', '.join(sorted(known))}"
    return f"this app has no task {shown(name)}{meant}"


def worker_name(strategy: str, rng: Random) -> str:
    """A worker's name, by strategy; or ``strategy`` itself, if it is none of them.

    It is for people. Leases are fenced by a secret that is new at every start, so a name may be the same after a
    restart.
    """
    match strategy:
        case "random":
            return f"{rng.getrandbits(128):032x}"
        case "hostname":
            return socket.gethostname()
        case "pod":
            return os.environ.get("HOSTNAME") or socket.gethostname()
        case "host-pid":
            return f"{socket.gethostname()}-{os.getpid()}"
        case _:
            return check_name(strategy, "worker name")
