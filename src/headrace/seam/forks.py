"""Forks. Python tells of its own ones. uWSGI forks without telling it, so who has something open looks."""

from __future__ import annotations

import os
from collections.abc import Callable

_hooks: list[Callable[[], None]] = []
_here = os.getpid()


def in_child(hook: Callable[[], None]) -> None:
    """Call this in every forked child, before it uses anything of its parent's."""
    _hooks.append(hook)


def look() -> None:
    """Notice a fork that nobody told of."""
    if os.getpid() != _here:
        _forked()


def _forked() -> None:
    global _here
    _here = os.getpid()
    for hook in _hooks:
        hook()


os.register_at_fork(after_in_child=_forked)
