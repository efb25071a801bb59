"""Requests as they are sent: small ones in one piece, large ones in parts, so that no part of them is copied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import hiredis

LARGE = 1024 * 1024
"""Bytes of an argument that is sent as a part of its own."""
_PIECE = 256 * 1024
"""Bytes that are handed to the event loop at once."""


class Joined(tuple[bytes, ...]):
    """An argument that consists of several pieces, one after the other."""

    __slots__ = ()


Argument = bytes | str | int | Joined

pack: Callable[[Sequence[Argument]], bytes] = hiredis.pack_command  # type: ignore[assignment]


def is_large(args: Iterable[Argument]) -> bool:
    """Whether a request with these arguments is to be sent in parts."""
    for arg in args:  # noqa: SIM110 - it is called for every request, and any() takes twice as long
        if (arg.__class__ is bytes and len(arg) > LARGE) or arg.__class__ is Joined:
            return True
    return False


def in_parts(args: Sequence[Argument]) -> list[memoryview]:
    """The request, in pieces that are sent one after the other. Large arguments are not copied."""
    parts: list[bytes | bytearray] = []
    small = bytearray(b"*%d\r\n" % len(args))
    for arg in args:
        pieces = arg if isinstance(arg, Joined) else (arg if isinstance(arg, bytes) else str(arg).encode(),)
        small += b"$%d\r\n" % sum(map(len, pieces))
        for piece in pieces:
            if len(piece) > LARGE:
                parts += (small, piece)
                small = bytearray()
            else:
                small += piece
        small += b"\r\n"
    views = [memoryview(part) for part in (*parts, small)]
    return [view[at : at + _PIECE] for view in views for at in range(0, len(view), _PIECE)]
