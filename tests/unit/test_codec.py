"""Values to bytes and back, and the envelope around them."""

from __future__ import annotations

import json
import math
import os
from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st

from headrace import JsonSerde, MsgpackSerde, RawSerde
from headrace.core.clock import ManualClock
from headrace.core.config import PayloadSettings
from headrace.core.ids import IdMaker
from headrace.errors import CodecError, PayloadTooLarge
from headrace.payloads.codec import JSON, MSGPACK, RAW, Envelope, show
from headrace.payloads.content_id import content_id
from headrace.payloads.pack import Packer
from headrace.seam.records import Limits
from tests.unit.given import given

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=5)
    ),
    max_leaves=20,
)


class TestSerdes:
    @given(PLAIN)
    def test_json_round_trip(self, value: Any) -> None:
        assert JsonSerde().decode(JsonSerde().encode(value)) == value

    @given(PLAIN | st.binary())
    def test_msgpack_round_trip(self, value: Any) -> None:
        assert MsgpackSerde().decode(MsgpackSerde().encode(value)) == value

    @given(st.binary())
    def test_raw_round_trip(self, value: bytes) -> None:
        assert RawSerde().decode(RawSerde().encode(value)) == value

    @given(
        st.recursive(
            st.floats() | st.none(),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner),
            max_leaves=10,
        ),
        examples=50,
    )
    def test_json_has_only_finite_numbers(self, value: Any) -> None:
        """X05: it comes back as it was, or it is refused; never as null."""
        try:
            body = JsonSerde().encode(value)
        except CodecError:
            return
        assert JsonSerde().decode(body) == value

    @pytest.mark.parametrize(("depth", "fits"), [(1, True), (63, True), (64, True), (65, False), (500, False)])
    def test_depth(self, depth: int, fits: bool) -> None:
        """X05: at most 64 deep."""
        value: Any = []
        for level in range(depth - 1):
            value = {"a": value} if level % 2 else [value]
        if fits:
            assert JsonSerde().decode(JsonSerde().encode(value)) == value
        else:
            with pytest.raises(CodecError, match=f"nested {depth} deep; the limit is 64"):
                JsonSerde().encode(value)

    def test_too_deep_for_any_stack(self) -> None:
        """A typed error, both ways and in either format."""
        value: Any = []
        for _ in range(100_000):
            value = [value]
        for serde, body in ((JsonSerde[Any](), b"[" * 100_000), (MsgpackSerde[Any](), b"\x91" * 100_000)):
            with pytest.raises(CodecError, match="nested too deeply"):
                serde.encode(value)
            with pytest.raises(CodecError):
                serde.decode(body)

    @given(st.text('[]{}\\"ab', max_size=300))
    def test_brackets_in_texts_are_no_depth(self, text: str) -> None:
        assert JsonSerde().decode(JsonSerde().encode([text] * 3)) == [text] * 3

    @pytest.mark.parametrize("value", [object(), {1, object()}, 1j, print, "\ud800", {"\udfff": 1}, {(1, 2): 3}])
    def test_what_cannot_be_encoded(self, value: Any) -> None:
        for serde in (JsonSerde(), MsgpackSerde()):
            if serde.kind == MSGPACK and isinstance(value, dict) and (1, 2) in value:
                continue
            with pytest.raises(CodecError, match="cannot encode"):
                serde.encode(value)

    def test_what_raises_on_its_own(self) -> None:
        """A model whose dump raises is told as a codec error, whatever it raises."""

        class Model:
            def model_dump(self, mode: str) -> Any:
                raise KeyError("field")

        for serde in (JsonSerde(), MsgpackSerde()):
            with pytest.raises(CodecError):
                serde.encode(Model())

    def test_raw_takes_bytes(self) -> None:
        for value in ("text", None, 5, bytearray(b"x")):
            with pytest.raises(CodecError, match=f"expected bytes, got {type(value).__name__}"):
                RawSerde().encode(value)  # type: ignore[arg-type]

    @pytest.mark.parametrize("serde", [JsonSerde(int), MsgpackSerde(int)], ids=["json", "msgpack"])
    def test_types_are_checked_on_the_way_out(self, serde: Any) -> None:
        with pytest.raises(CodecError, match="Expected `int`, got `str`"):
            serde.decode({JSON: b'"x"', MSGPACK: b"\xa1x"}[serde.kind])

    @pytest.mark.parametrize("serde", [JsonSerde(int), MsgpackSerde(int)], ids=["json", "msgpack"])
    def test_and_on_the_way_in(self, serde: Any) -> None:
        """As the docstrings say: what could not be decoded again is not encoded."""
        with pytest.raises(CodecError, match="int"):
            serde.encode("x")

    @given(st.binary(max_size=60))
    def test_any_bytes_decode_or_raise_a_codec_error(self, body: bytes) -> None:
        for serde in (JsonSerde(), MsgpackSerde(), JsonSerde(list[int]), MsgpackSerde(dict[str, bytes])):
            try:
                serde.decode(body)
            except CodecError:
                pass

    def test_duplicate_keys_and_big_numbers_are_the_same_everywhere(self) -> None:
        assert JsonSerde().decode(b'{"a": 1, "a": 2}') == {"a": 2}
        for body in (b"1e400", b"-1e400", b"1" * 5_000, b"NaN", b"Infinity", b"01", b"'a'", b"{a: 1}", b"[1,]", b""):
            with pytest.raises(CodecError):
                JsonSerde().decode(body)


class TestEnvelope:
    @given(st.binary(max_size=5_000), st.sampled_from([RAW, JSON, MSGPACK]), st.sampled_from([None, 0, 100, 10**6]))
    def test_round_trip(self, body: bytes, kind: int, over: int | None) -> None:
        """Whatever the settings were, the cell can be read with those of today."""
        cell = Envelope(max_size=10_000, compress_over=over).wrap(body, kind, "x")
        assert Envelope(max_size=10_000, compress_over=None).unwrap(cell, "x") == (kind, body)

    @given(st.binary(min_size=1, max_size=200), st.data())
    def test_a_flipped_bit_is_noticed(self, body: bytes, data: Any) -> None:
        """C35: damage is told as damage, never read as data."""
        envelope = Envelope(max_size=10_000, compress_over=50)
        cell = bytearray(envelope.wrap(body, JSON, "x"))
        position = data.draw(st.integers(1, len(cell) - 1))
        cell[position] ^= 1 << data.draw(st.integers(0, 7))
        with pytest.raises(CodecError, match="checksum"):
            envelope.unwrap(bytes(cell), "x")

    @given(st.binary(max_size=50) | st.binary(max_size=50).map(b"{".__add__))
    def test_any_bytes_open_or_raise_a_payload_error(self, cell: bytes) -> None:
        """What opens without a checksum is JSON to everybody."""
        try:
            opened = Envelope(max_size=1_000, compress_over=None).unwrap(cell, "x")
        except (CodecError, PayloadTooLarge):
            return
        assert opened == (JSON, cell)
        assert isinstance(json.loads(cell), dict)

    @given(
        st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), PLAIN, max_size=5),
        st.booleans(),
        st.sampled_from([None, 2]),
    )
    def test_bare_json(self, value: dict[str, Any], ascii: bool, indent: int | None) -> None:
        """An object may do without an envelope, however it is written."""
        cell = json.dumps(value, ensure_ascii=ascii, indent=indent).encode()
        envelope = Envelope(max_size=10, compress_over=0)
        assert envelope.unwrap(cell, "x") == (JSON, cell)
        assert envelope.decode(cell, JsonSerde(), "x") == value

    @pytest.mark.parametrize(
        ("cell", "said"),
        [
            (b"{", "truncated"),
            (b'{"a": 1', "truncated"),
            (b'{"a": 1}}', "trailing characters"),
            (b"{\x01\x02\x03\x04{}", "object keys must be strings"),
            (b'{"a": NaN}', "malformed"),
            (b'{"a": "\\ud800"}', "truncated|surrogate"),
            (b'{"a": "\xff"}', "utf-8"),
            (b'{"a": ' + b"[" * 63 + b"]" * 63 + b"}", ""),
            (b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}", "nested 65 deep; the limit is 64"),
            (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
            (b'[{"a": 1}]', "checksum"),
            (b' {"a": 1}', "checksum"),
        ],
    )  # fmt: skip
    def test_what_is_no_bare_json(self, cell: bytes, said: str) -> None:
        envelope = Envelope(max_size=10**6, compress_over=None)
        if not said:
            assert envelope.unwrap(cell, "args") == (JSON, cell)
            return
        with pytest.raises(CodecError, match=f"args: .*({said})"):
            envelope.decode(cell, JsonSerde(), "args")

    def test_bare_json_is_json_and_nothing_else(self) -> None:
        envelope = Envelope(max_size=100, compress_over=None)
        with pytest.raises(CodecError, match="blob: expected raw bytes, got JSON"):
            envelope.decode(b"{}", RawSerde(), "blob")
        assert envelope.decode(b'{"a": 1, "a": 2}', JsonSerde(), "x") == {"a": 2}

    def test_compresses_what_is_long_and_where_it_pays(self) -> None:
        envelope = Envelope(max_size=10**6, compress_over=1_000)
        assert len(envelope.wrap(bytes(1_000), RAW, "x")) == 1_005
        assert len(envelope.wrap(bytes(1_001), RAW, "x")) < 100
        assert len(envelope.wrap(os.urandom(5_000), RAW, "x")) == 5_005

    def test_limits(self) -> None:
        """X13: to the byte, and told in a way that helps."""
        envelope = Envelope(max_size=100, compress_over=10)
        assert envelope.unwrap(envelope.wrap(bytes(100), RAW, "x"), "x") == (RAW, bytes(100))
        with pytest.raises(
            PayloadTooLarge, match="blob: expected at most 100 bytes, got 101; keep large data elsewhere"
        ):
            envelope.wrap(bytes(101), RAW, "blob")
        larger = Envelope(max_size=101, compress_over=10).wrap(bytes(101), RAW, "x")
        with pytest.raises(PayloadTooLarge, match="more than the 100 bytes allowed"):
            envelope.unwrap(larger, "blob")

    def test_kinds_are_told_apart(self) -> None:
        envelope = Envelope(max_size=100, compress_over=None)
        with pytest.raises(CodecError, match="result: expected JSON, got MessagePack"):
            envelope.decode(envelope.wrap(b"\x01", MSGPACK, "x"), JsonSerde(), "result")
        with pytest.raises(CodecError, match="kind 9; a newer version"):
            envelope.unwrap(envelope.wrap(b"", 9, "x"), "x")

    def test_empty_is_not_absent(self) -> None:
        envelope = Envelope(max_size=100, compress_over=None)
        assert envelope.unwrap(envelope.wrap(b"", RAW, "x"), "x") == (RAW, b"")

    def test_shown_to_people(self) -> None:
        assert show(JSON, b'{"a": 1}') == {"a": 1}
        assert show(MSGPACK, b"\x81\xa1a\x01") == {"a": 1}
        assert show(RAW, b"\xff") == b"\xff"


class TestContentId:
    @given(st.dictionaries(st.text(max_size=5), st.integers(), max_size=8), st.randoms())
    def test_order_does_not_matter(self, payload: dict[str, int], rng: Any) -> None:
        items = list(payload.items())
        rng.shuffle(items)
        assert content_id(dict(items)) == content_id(payload)

    @given(PLAIN, PLAIN)
    def test_different_payloads_differ(self, one: Any, other: Any) -> None:
        """As JSON tells them apart: 1 and 1.0 are one number, True is not 1."""
        same = JsonSerde().encode(one) == JsonSerde().encode(other)
        if same:
            assert content_id(one) == content_id(other)
        elif one != other:
            assert content_id(one) != content_id(other)

    def test_is_the_same_everywhere_and_for_ever(self) -> None:
        """Part of the contract: ids made by another version, or another machine, must match."""
        assert content_id({"b": [1, None], "a": "ü"}) == "fbaf0220673a91889e919f4d6edb7ca3"

    def test_not_a_number(self) -> None:
        for value in (math.nan, {"a": math.inf}):
            with pytest.raises(CodecError):
                content_id(value)


def cyclic(times: int) -> list[Any]:
    value: list[Any] = []
    value.extend([value] * times)
    return value


@pytest.mark.timeout(30)
@pytest.mark.parametrize("times", [1, 2])
def test_no_id_is_made_from_what_holds_itself(times: int) -> None:
    with pytest.raises(CodecError, match="contains itself"):
        content_id(cyclic(times))
    with pytest.raises(CodecError, match="contains itself"):
        content_id({"a": cyclic(times)})


def test_no_id_is_made_from_numbers_that_json_has_not() -> None:
    for number in (float("nan"), float("inf")):
        with pytest.raises(CodecError, match="only finite numbers"):
            content_id({"a": [number]})


def test_a_value_that_is_too_long_is_not_walked_through() -> None:
    """What is over the limit is not looked into."""

    class Loud(dict[str, object]):
        def values(self) -> Any:
            raise AssertionError("looked into")

    packer = Packer(PayloadSettings(max_size=1_000), Limits(), IdMaker(ManualClock(), Random(1)))
    with pytest.raises(PayloadTooLarge):
        packer.wrap_value({"a": ["x" * 2_000, None, Loud(b=None)]}, JsonSerde(), "args")


LONG: list[Any] = [{"a": None, "b": 1.5}] * 10_000
"""A value that is not walked through for numbers that JSON has not, unless it may have some."""


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), -float("nan")])
def test_a_long_value_has_only_finite_numbers_too(number: float) -> None:
    for value in ([*LONG, number], [{"a": [number]}, *LONG]):
        with pytest.raises(CodecError, match="only finite numbers"):
            JsonSerde().encode(value)
    body = JsonSerde().encode([*LONG, 1.7e308, -1.7e308, b"\xcb\x7f\xf8"])
    assert JsonSerde().decode(body)[:-1] == [*LONG, 1.7e308, -1.7e308]


@pytest.mark.parametrize("text", ["", "[", "]]", '"', '["', "\\", '\\"[', "{}", "},{"])
def test_a_long_value_is_not_nested_too_deeply_either(text: str) -> None:
    """Whatever brackets its texts have."""
    deep: Any = text
    for _ in range(63):
        deep = [deep]
    value = [*LONG, text, {"[": text, text: deep}]
    assert JsonSerde().decode(JsonSerde().encode([*LONG, {text: text}])) == [*LONG, {text: text}]
    with pytest.raises(CodecError, match="nested 65 deep; the limit is 64"):
        JsonSerde().encode(value)
    assert JsonSerde().encode([*LONG, {text: deep[0]}])
