"""Outcomes for people: ids by their number, and of records only what is not as usual."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import fields

from tests.backends.interleaving.scenes import number_of


def shown(value: Any) -> str:
    """The value, as short as can be."""
    match value:
        case bytes() if len(value) == 16:
            return f"#{number_of(value)}"
        case Struct():
            given = [(field.name, getattr(value, field.name), field.default) for field in fields(value)]
            said = ", ".join(f"{name}={shown(found)}" for name, found, usual in given if found != usual)
            return f"{type(value).__name__}({said})"
        case list() | tuple():
            return f"[{', '.join(map(shown, value))}]"
    return str(value)
