"""A store all of whose calls are made by one function, which may bound, repeat or refuse them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

Ask = Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Makes the call of this name."""
_CAPABILITIES = frozenset(
    {
        "archive", "documents", "journal", "parts", "policies", "references", "tables", "ticks", "tracks", "transfers",
        "windows",
    }
)  # fmt: skip


class Asking:
    """A store, or a capability of it."""

    def __init__(self, store: object, ask: Ask) -> None:
        self._store = store
        self._ask = ask

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in _CAPABILITIES:
            return None if found is None else Asking(found, self._ask)
        if not inspect.iscoroutinefunction(found):
            return found

        async def asked(*args: Any, **options: Any) -> Any:
            return await self._ask(name, lambda: found(*args, **options))

        return asked
