"""The base of records as people and programs see them."""

from __future__ import annotations

from typing import Any

import msgspec


class View(msgspec.Struct, frozen=True):
    """What users are shown of something stored."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON can carry."""
        return msgspec.to_builtins(self, str_keys=True)  # type: ignore[no-any-return]
