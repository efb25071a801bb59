"""Values to bytes and back: formats, compression, and the envelope around every cell.

A cell is ``kind (1 byte) · CRC-32 (4 bytes) · body``. The kind says how the body was made, so a cell can be read
whatever the settings are today; the checksum tells damage from nonsense. Only data is ever decoded, never code.

A sealed cell (:mod:`headrace.payloads.keyring`) has a kind of its own, and another cell inside.

A cell that begins with ``{`` is a bare JSON object, without a kind and a checksum: it was written where no envelope is
at hand, as by a function in SQL. No kind is 123, the code of ``{``.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Collection
from dataclasses import is_dataclass
from struct import Struct
from typing import Any, Generic, Protocol, TypeVar, get_args, get_origin
from zlib import crc32

import msgspec

from headrace.errors import CodecError, ConfigError, HeadraceError, PayloadTooLarge, SealError
from headrace.payloads.section_sizes import SectionSizes
from headrace.seam import references
from headrace.text import shown

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

T = TypeVar("T")

RAW, JSON, MSGPACK = 0, 1, 2
REFERENCE = references.KIND
_ZSTD = 0x10
SEALED = 0x20
_HEAD = Struct(">BI")
_BRACE = ord("{")
_NAMES = {RAW: "raw bytes", JSON: "JSON", MSGPACK: "MessagePack"}
_MAX_DEPTH = 64
_NO_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+"|[^"\[\]{}]++', re.DOTALL)
"""In JSON: strings, and everything else but brackets."""
_ALIKE = bytes.maketrans(b"{}", b"[]")
_OPENS = ord("[")
_NEITHER = bytes(set(range(256)) - set(b'[]{}"\\'))
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""In MessagePack: where a number may be that is not finite. Other bytes may look like one."""
_LONG = 64 * 1024
"""Bytes of JSON from which on a look at all of it is quicker than a walk through the value."""
_PLAIN = frozenset((str, int, bool, type(None), bytes))
"""Types whose values contain no others."""
_MIN_GAIN = 0.9
_BARE = msgspec.json.Decoder(dict[str, msgspec.Raw])
ENCODABLE = (
    "what can be stored is None, bool, numbers, text, bytes, dates and times, UUIDs, enums, "
    "lists, tuples, sets and dicts of these, dataclasses, and models of msgspec and Pydantic"
)


class Serde(Protocol[T]):
    """How values of one type become bytes. Bring your own for protobuf, Arrow, or anything else.

    >>> from headrace import Queue, RawSerde
    >>> class TextSerde:
    ...     kind = RawSerde.kind
    ...     def encode(self, value: str) -> bytes:
    ...         return value.encode()
    ...     def decode(self, body: bytes) -> str:
    ...         return body.decode()
    >>> notes = Queue[str, int]("notes", "memory://", payload_serde=TextSerde())
    """

    @property
    def kind(self) -> int:
        """RAW for a format of your own; JSON or MSGPACK let tools show the value."""

    def encode(self, value: T) -> bytes: ...

    def decode(self, body: bytes) -> T: ...


def check_serde(serde: Any) -> None:
    """Refuse what is not a serde when it is given, not when it is used."""
    kind = getattr(serde, "kind", None)
    if type(kind) is not int or kind not in _NAMES:
        raise ConfigError(f"serde: expected kind RAW, JSON or MSGPACK, got {shown(kind)} from {shown(serde)}")
    if not callable(getattr(serde, "encode", None)) or not callable(getattr(serde, "decode", None)):
        raise ConfigError(f"serde: expected an object that can encode and decode, got {shown(serde)}")


class _TypedSerde(Generic[T]):
    """A format of msgspec's, checked against a type."""

    def __init__(self, encoder: Any, decoder: Any, type: Any) -> None:
        self._encode = encoder(enc_hook=_enc_hook).encode
        self._decode = decoder(type, dec_hook=_dec_hook).decode
        self._typed = type is not Any
        self.type = type
        """The type that values are checked against; Any: none."""
        self.takes_none = _takes_none(self)
        """Whether None is a value of this type."""

    def decode(self, body: bytes) -> T:
        return _decoding(self._decode, body)  # type: ignore[no-any-return]


def _takes_none(serde: _TypedSerde[Any]) -> bool:
    try:
        serde.decode(serde._encode(None))
    except CodecError:
        return False
    return True


class JsonSerde(_TypedSerde[T]):
    """JSON, checked against ``type`` on the way in and out.

    >>> JsonSerde(list[int]).decode(b"[1, 2]")
    [1, 2]
    """

    kind = JSON

    def __init__(self, type: Any = Any) -> None:
        super().__init__(msgspec.json.Encoder, msgspec.json.Decoder, type)
        self._pack = msgspec.msgpack.Encoder(enc_hook=_enc_hook).encode
        self._untyped_keys = _has_untyped_keys(type)

    def encode(self, value: T, most: int | None = None) -> bytes:
        """The value as JSON. More than ``most`` bytes are not checked: the caller refuses them."""
        body = _encoding(self._encode, value)
        if most is not None and len(body) > most:
            return body
        if self._untyped_keys and b"{" in body:
            _refuse_keys(value)
        if (b"null" in body or b'"nan"' in body) and self._may_have_nan(value, body):
            refuse_nan(value)
        if _has_many_brackets(body):
            _refuse_depth(body)
        if self._typed:
            self.decode(body)
        return body

    def _may_have_nan(self, value: T, body: bytes) -> bool:
        """Whether it is worth a walk through the value; a quick look at a long one, in a format that has NaN."""
        if len(body) < _LONG:
            return True
        try:
            return _NOT_FINITE.search(self._pack(value)) is not None
        except Exception:  # JSON takes some values that MessagePack does not
            return True


class MsgpackSerde(_TypedSerde[T]):
    """MessagePack: binary, compact, checked against ``type``.

    >>> MsgpackSerde(dict[str, bytes]).decode(MsgpackSerde().encode({"a": b"b"}))
    {'a': b'b'}
    """

    kind = MSGPACK

    def __init__(self, type: Any = Any) -> None:
        super().__init__(msgspec.msgpack.Encoder, msgspec.msgpack.Decoder, type)

    def encode(self, value: T) -> bytes:
        body = _encoding(self._encode, value)
        if self._typed:
            self.decode(body)
        return body


class RawSerde:
    """Bytes as they are.

    >>> RawSerde().encode(b"as is")
    b'as is'
    """

    kind = RAW

    def encode(self, value: bytes) -> bytes:
        if not isinstance(value, bytes):
            raise CodecError(f"expected bytes, got {type(value).__name__}; encode the value or choose another serde")
        return value

    def decode(self, body: bytes) -> bytes:
        return body


class Unloaded(bytes):
    """A reference whose cell could not be loaded: the reason is raised by whoever reads it."""

    error: HeadraceError


def not_here(reference: bytes, section: str) -> HeadraceError:
    """The error for whoever reads a reference instead of its cell."""
    if isinstance(reference, Unloaded):
        return reference.error
    return CodecError(f"{section}: expected the cell itself, got a reference to it; load it from the object store")


class Envelope:
    """Wraps bodies into cells and unwraps cells, within size limits."""

    def __init__(
        self,
        *,
        max_size: int,
        compress_over: int | None,
        as_it_is: Collection[str] = (),
        sizes: SectionSizes | None = None,
    ) -> None:
        self.max_size = max_size
        self._compress_over = compress_over
        self._as_it_is = frozenset(as_it_is)
        """Sections that are never compressed."""
        self._sizes = SectionSizes() if sizes is None else sizes

    def check_size(self, size: int, what: str) -> None:
        """Raise ``PayloadTooLarge`` if a body of this many bytes would not be wrapped."""
        if size > self.max_size:
            raise PayloadTooLarge(
                f"{what}: expected at most {self.max_size} bytes, got {size}; "
                "keep large data elsewhere and pass a reference, or raise payloads.max_size"
            )

    def wrap(self, body: bytes, kind: int, what: str, section: str = "parameters") -> bytes:
        """A cell around ``body``; compressed when it is long and that pays. ``what`` is for people."""
        raw = len(body)
        self.check_size(raw, what)
        if self._compress_over is not None and raw > self._compress_over and section not in self._as_it_is:
            packed = zstd.compress(body)
            if len(packed) < len(body) * _MIN_GAIN:
                body = packed
                kind |= _ZSTD
        self._sizes.add(section, raw, len(body))
        return _HEAD.pack(kind, crc32(body)) + body

    def unwrap(self, cell: bytes, section: str, job_id: bytes | None = None, tenant: str = "") -> tuple[int, bytes]:
        """The kind and the body of a cell. Whose cell it is matters to those that are sealed: no id stands for the
        template of a schedule, and a result is not bound to its tenant."""
        if len(cell) < _HEAD.size:
            if cell.startswith(b"{"):
                return JSON, _bare(cell, section)
            raise CodecError(f"{section}: expected an envelope of at least {_HEAD.size} bytes, got {len(cell)}")
        kind, checksum = _HEAD.unpack_from(cell)
        if kind not in _NAMES:
            if kind == _BRACE:
                return JSON, _bare(cell, section)
            if references.is_reference(cell):
                raise not_here(cell, section)
        body = cell[_HEAD.size :]
        if crc32(body) != checksum:
            raise CodecError(f"{section}: the checksum does not match; the stored bytes are damaged")
        if kind & _ZSTD:
            body = self._inflate(body, section)
            kind &= ~_ZSTD
        if kind not in _NAMES:
            if kind == SEALED:
                raise SealError(f"{section}: it is sealed, and this process has no keys; set payloads.sealing.keys")
            raise CodecError(
                f"{section}: expected a known format, got kind {kind}; a newer version may have written it"
            )
        return kind, body

    def decode(
        self, cell: bytes | None, serde: Serde[T], section: str, job_id: bytes | None = None, tenant: str = ""
    ) -> T:
        """The value in a cell that ``serde`` wrote; no cell stands for JSON's null."""
        kind, body = (JSON, b"null") if cell is None else self.unwrap(cell, section, job_id, tenant)
        if kind != serde.kind:
            raise CodecError(f"{section}: expected {_NAMES[serde.kind]}, got {_NAMES[kind]}")
        try:
            return serde.decode(body)
        except Exception as error:
            raise CodecError(f"{section}: {error}") from error

    def readable(self, cell: bytes | None, section: str, job_id: bytes | None = None, tenant: str = "") -> Any:
        """The value in a cell as plain data, for people; in angle brackets, why it cannot be shown."""
        if cell is None:
            return None
        try:
            return msgspec.to_builtins(show(*self.unwrap(cell, section, job_id, tenant)), str_keys=True)
        except (HeadraceError, TypeError, ValueError) as error:
            return f"<{error}>"

    def _inflate(self, body: bytes, what: str) -> bytes:
        decompressor = zstd.ZstdDecompressor()
        try:
            inflated = decompressor.decompress(body, max_length=self.max_size + 1)
        except zstd.ZstdError as error:
            raise CodecError(f"{what}: cannot be decompressed: {error}") from error
        if len(inflated) > self.max_size or not decompressor.eof:
            raise PayloadTooLarge(f"{what}: unpacks to more than the {self.max_size} bytes allowed")
        if decompressor.unused_data:
            raise CodecError(f"{what}: something follows the compressed data; the stored bytes are damaged")
        return inflated


def _bare(cell: bytes, what: str) -> bytes:
    """The cell itself, if it is a JSON object. Without a checksum, only its form tells it from damage."""
    try:
        _decoding(_BARE.decode, cell)
        _decoding(bytes.decode, cell)
        if _has_many_brackets(cell):
            _decoding(_refuse_depth, cell)
    except CodecError as error:
        raise CodecError(f"{what}: expected an envelope or a JSON object: {error}") from error
    return cell


def show(kind: int, body: bytes) -> Any:
    """The body as plain data, for people: JSON and MessagePack decoded, anything else as bytes."""
    if kind == JSON:
        return _decoding(msgspec.json.decode, body)
    return _decoding(msgspec.msgpack.decode, body) if kind == MSGPACK else body


def worded(error: Exception) -> str:
    """What is wrong with a value, worded for a message of ours.

    >>> worded(CodecError("Expected `int`, got `null` - at `$.count`"))
    'expected int, got None, at $.count'
    """
    said = str(error).replace("`null`", "None").replace("`", "").replace(" - at ", ", at ")
    return said[:1].lower() + said[1:] if said.startswith("Expected ") else said


def annotation(serde: Serde[Any]) -> str:
    """The type that a serde is for, as written in code; empty for a serde of your own, and for Any.

    >>> annotation(JsonSerde(list[int]))
    'list[int]'
    """
    kind = getattr(serde, "type", Any)
    return "" if kind is Any else "None" if kind is type(None) else inspect.formatannotation(kind)


def _encoding(encode: Callable[[Any], bytes], value: object) -> bytes:
    try:
        return encode(value)
    except RecursionError as error:
        raise CodecError(f"cannot encode {type(value).__name__}: nested too deeply") from error
    except Exception as error:
        raise CodecError(f"cannot encode {type(value).__name__}: {error}") from error


def _decoding(decode: Callable[[bytes], Any], body: bytes) -> Any:
    try:
        return decode(body)
    except RecursionError as error:
        raise CodecError("nested too deeply") from error
    except Exception as error:
        raise CodecError(str(error)) from error


def _enc_hook(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"objects of type {type(value).__name__} are not supported; {ENCODABLE}")


def _dec_hook(type: Any, value: Any) -> Any:
    if type is object:  # what strict annotations say for Any
        return value
    if hasattr(type, "model_validate"):
        return type.model_validate(value)
    raise NotImplementedError(f"objects of type {type!r} are not supported")


def refuse_nan(value: Any) -> None:
    """JSON has no NaN and no infinity; the encoder would turn them into null without a word."""
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if type(item) in _PLAIN:
            continue
        if isinstance(item, float):
            if not math.isfinite(item):
                raise CodecError(f"cannot encode {item!r}: JSON has only finite numbers")
        elif isinstance(item, dict):
            todo.extend([one for one in item.values() if type(one) not in _PLAIN])
            todo.extend([one for one in item if type(one) not in _PLAIN])
        elif is_dataclass(item) or isinstance(item, msgspec.Struct):
            todo.extend(getattr(item, field, None) for field in _fields(item))
        elif isinstance(item, list | tuple | set | frozenset):
            todo.extend(item)


def _has_untyped_keys(hint: Any) -> bool:
    """Whether values of the type may contain dicts whose keys decoding cannot restore."""
    if hint in (Any, object, dict):
        return True
    inner = get_args(hint)
    if get_origin(hint) is dict and inner[0] not in (str, Any):
        return False
    return any(_has_untyped_keys(one) for one in inner)


def _refuse_keys(value: Any) -> None:
    """JSON keys are text only: other keys would come back different."""
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    raise CodecError(
                        f"cannot encode the key {shown(key)}: JSON has only text for keys; "
                        f"use text, or declare the type, like dict[int, str]"
                    )
            todo.extend([one for one in item.values() if type(one) not in _PLAIN])
        elif isinstance(item, list | tuple):
            todo.extend(item)


def _fields(item: Any) -> tuple[str, ...]:
    return (*getattr(item, "__dataclass_fields__", ()), *getattr(item, "__struct_fields__", ()))


def _has_many_brackets(body: bytes) -> bool:
    """Whether JSON may be nested too deeply. It takes longer to count brackets than to see that there are no more."""
    if b"[" not in body and body.find(b"{", 1) < 0:
        return False
    return body.count(b"[") + body.count(b"{") > _MAX_DEPTH


def _refuse_depth(body: bytes) -> None:
    # Most texts have no brackets, and nothing is left of them: that is quickly seen.
    brackets = body.translate(_ALIKE, _NEITHER).replace(b'""', b"")
    if b'"' in brackets or b"\\" in brackets:
        brackets = _NO_BRACKETS.sub(b"", body).translate(_ALIKE)
    left = brackets
    for _ in range(_MAX_DEPTH):
        left = left.replace(b"[]", b"")
    if not left:
        return
    depth = deepest = 0
    for bracket in brackets:
        depth += 1 if bracket == _OPENS else -1
        deepest = max(deepest, depth)
    raise CodecError(f"nested {deepest} deep; the limit is {_MAX_DEPTH}")
