"""Whether a worker does its work."""

from __future__ import annotations

from msgspec import Struct


class Health(Struct, frozen=True, kw_only=True):
    """Whether the worker does its work, and not only whether its process lives."""

    consuming: bool
    beating: bool
    busy: int
    slots: int
    alive: int
    """Slots that can run jobs. The others have ended, and will be started again."""
    strays: int
    """Threads that go on although their jobs were given up on."""
    detail: str

    @property
    def ok(self) -> bool:
        """Whether all is well."""
        return self.consuming and self.beating and self.alive >= self.slots
