"""References: 25 bytes that say where a cell lies, and nothing else."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import strategies as st

from headrace.errors import CodecError
from headrace.payloads.codec import JSON, RAW, REFERENCE, Envelope
from headrace.payloads.reference import SIZE, Reference, day_of, digest_of, is_reference, read_reference
from tests.unit.given import given

LAST_HOUR = 2**24 - 1
REFERENCES = st.builds(
    Reference,
    st.integers(0, LAST_HOUR),
    st.binary(min_size=8, max_size=8),
    st.integers(0, 2**24 - 1),
    st.integers(0, 2**32 - 1),
    st.binary(min_size=4, max_size=4),
)
ENVELOPE = Envelope(max_size=1_000, compress_over=None)


@given(REFERENCES)
def test_it_is_read_as_it_was_written(reference: Reference) -> None:
    assert len(reference.cell) == SIZE == 25
    assert is_reference(reference.cell)
    assert read_reference(reference.cell, "blob") == reference


@given(REFERENCES)
def test_its_key_is_made_of_hex_dashes_and_slashes(reference: Reference) -> None:
    folder, day, hour, name = reference.key.split("/")
    assert (folder, day, bytes.fromhex(name)) == ("segments", str(reference.day), reference.name)
    assert len(day) == 10
    assert (reference.day - date(1970, 1, 1)).days * 24 + int(hour) == reference.hour


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda body: ENVELOPE.wrap(body, REFERENCE, "blob")))
def test_nonsense_is_refused(cell: bytes) -> None:
    with pytest.raises(CodecError, match="blob: "):
        read_reference(cell + b"!" * (len(cell) == SIZE), "blob")


@given(REFERENCES, st.integers(0, 8 * SIZE - 1))
def test_a_single_flipped_bit_is_found(reference: Reference, bit: int) -> None:
    flipped = int.from_bytes(reference.cell, "big") ^ (1 << bit)
    with pytest.raises(CodecError):
        read_reference(flipped.to_bytes(SIZE, "big"), "blob")


@given(REFERENCES, st.integers(0, 8 * SIZE - 16), st.integers(1, 2**16 - 1))
def test_damage_of_two_bytes_is_found(reference: Reference, at: int, damage: int) -> None:
    damaged = int.from_bytes(reference.cell, "big") ^ (damage << at)
    with pytest.raises(CodecError):
        read_reference(damaged.to_bytes(SIZE, "big"), "blob")


def test_every_hour_has_a_day() -> None:
    assert day_of(LAST_HOUR) == date(3883, 12, 8)


def test_it_is_no_payload() -> None:
    reference = Reference(1, bytes(8), 0, 5, digest_of(b"cell"))
    with pytest.raises(CodecError, match="blob: expected the cell itself, got a reference to it; load it"):
        ENVELOPE.unwrap(reference.cell, "blob")


@pytest.mark.parametrize("cell", [b"", b"{}", ENVELOPE.wrap(b"", RAW, "x"), ENVELOPE.wrap(b"1", JSON, "x")])
def test_other_cells_are_no_references(cell: bytes) -> None:
    assert not is_reference(cell)
    with pytest.raises(CodecError, match="blob: expected a reference of 25 bytes, got "):
        read_reference(cell, "blob")
