"""The event loop on which a worker is at its best."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def on_uvloop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run on uvloop if it is installed, as ``headrace worker`` does, else on asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
