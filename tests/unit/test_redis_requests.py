"""Requests in parts are the same bytes as requests in one piece."""

from __future__ import annotations

import pytest

from headrace.backends.redis.job_layout import body, large_body
from headrace.backends.redis.requests import LARGE, Argument, Joined, in_parts, is_large, pack
from headrace.testing.conformance.base import row

MUCH = bytes(range(256)) * (LARGE // 256 + 1)


@pytest.mark.parametrize(
    "args",
    [
        ("EVALSHA", "digest", 1, "base", b"", b"small"),
        ("SET", "ü", MUCH),
        (MUCH, -5, MUCH, "", MUCH + b"x"),
        tuple(b"%d" % n * n for n in range(2_000)),
    ],
    ids=["small", "large", "several", "many"],
)
def test_the_same_bytes_are_sent(args: tuple[Argument, ...]) -> None:
    assert b"".join(in_parts(args)) == pack(args)
    assert is_large(args) == (MUCH in args)


def test_an_argument_of_several_pieces_is_one_argument() -> None:
    args = ("SET", "key", Joined((b"one ", MUCH, b"", b" two")), "EX", 5)
    assert is_large(args)
    assert b"".join(in_parts(args)) == pack(("SET", "key", b"one " + MUCH + b" two", "EX", 5))


def test_a_large_argument_is_not_copied() -> None:
    parts = in_parts(("SET", "key", MUCH))
    assert sum(len(part) for part in parts if part.obj is MUCH) == len(MUCH)
    assert max(map(len, parts)) <= LARGE


@pytest.mark.parametrize("cells", [{"parameters": MUCH}, {"blob": MUCH, "vm_state": b"x"}, {"parameters": b"{}"}, {}])
@pytest.mark.parametrize("headers", [None, b"h"])
def test_a_large_job_is_packed_like_others(cells: dict[str, bytes], headers: bytes | None) -> None:
    job = row(1, cells=cells, headers=headers)
    packed = large_body(job)
    assert isinstance(packed, Joined) == (MUCH in cells.values())
    assert (b"".join(packed) if isinstance(packed, Joined) else packed) == body(job)
