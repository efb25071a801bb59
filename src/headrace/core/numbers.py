"""Checks of whole numbers that users give."""

from __future__ import annotations

from headrace.errors import ConfigError, HeadraceError
from headrace.text import shown


def check_whole(
    given: object, what: str, least: int = 1, most: int | None = None, error: type[HeadraceError] = ConfigError
) -> int:
    """The number, if it is whole and within the bounds. Raises ``error``.

    >>> check_whole(3, "limit")
    3
    """
    if not isinstance(given, int) or isinstance(given, bool) or given < least or (most is not None and given > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise error(f"{what}: expected a whole number {bounds}, got {shown(given)}")
    return given
