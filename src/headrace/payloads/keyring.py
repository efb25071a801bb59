"""Keys that seal cells, and where they come from.

A sealed cell is ``kind (1 byte) · CRC-32 (4 bytes) · scheme (1 byte) · length of the key's id (1 byte) · the key's id ·
nonce (12 bytes) · ciphertext and tag``. The ciphertext is that of a whole cell (:mod:`headrace.payloads.codec`), by
AES-256-GCM-SIV. It opens only in the place that it was sealed for: section, tenant and, by its scheme, one job.
"""

from __future__ import annotations

import os
import re
from base64 import b64decode
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from zlib import crc32

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

from headrace.errors import ConfigError, SealError, UnknownKey
from headrace.payloads.codec import SEALED
from headrace.text import shown

_BOUND, _UNBOUND = 1, 2
"""Schemes: for one job; for all jobs that are made from one template."""
_CRC_ENDS, _ID_BEGINS, _NONCE, _TAG = 5, 7, 12, 16
_SAME_NONCE = bytes(_NONCE)
_KEY_BYTES = 32
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,32}")
_HEX = re.compile(r"[0-9A-Fa-f]{64}")
_SETTING = "payloads.sealing.keys"
_FORM = "an id, a colon and the key: 32 bytes as base64 or hex"


class Keyring:
    """One key that seals and any number that open. It shows their ids, never the keys.

    >>> old, new = Keyring({"2026-05": bytes(32)}), Keyring({"2026-11": bytes(range(32)), "2026-05": bytes(32)})
    >>> cell = old.seal(b"cell", "parameters", bytes(16), "acme")
    >>> new.open(cell, "parameters", bytes(16), "acme")
    b'cell'
    >>> new
    Keyring(seals with '2026-11', opens '2026-11', '2026-05')
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """The first key seals, all of them open."""
        self._ciphers = {name: _cipher(key) for name, key in keys.items()}
        if not self._ciphers:
            raise ConfigError(f"{_SETTING}: expected at least one key, got none; a key is {_FORM}")
        self.seals_with = next(iter(self._ciphers))
        """The id of the key that seals."""

    @property
    def opens(self) -> list[str]:
        """The ids of all keys."""
        return list(self._ciphers)

    def __repr__(self) -> str:
        return f"Keyring(seals with {self.seals_with!r}, opens {', '.join(map(repr, self._ciphers))})"

    def seal(self, cell: bytes, section: str, job_id: bytes | None, tenant: str = "") -> bytes:
        """The cell sealed, for this section of this job. Without an id it opens in that section of all jobs of the
        tenant, and is the same every time, so that equal templates stay equal."""
        head = _head(_UNBOUND if job_id is None else _BOUND, self.seals_with)
        nonce = _SAME_NONCE if job_id is None else os.urandom(_NONCE)
        place = _place(head, section, job_id, tenant)
        body = b"%b%b%b" % (head, nonce, self._ciphers[self.seals_with].encrypt(nonce, cell, place))
        return b"%c%b%b" % (SEALED, crc32(body).to_bytes(4, "big"), body)

    def open(self, cell: bytes, section: str, job_id: bytes | None, tenant: str = "") -> bytes:
        """The cell that was sealed. Raises ``SealError`` for any cell that was not sealed for this place, with one of
        these keys, exactly as it is."""
        key_id, nonce_begins = _parsed(cell, section)
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            known = ", ".join(map(repr, self._ciphers))
            raise UnknownKey(
                f"{section}: sealed with key {shown(key_id)}; expected one of those of this process: {known}"
            )
        head, ends = cell[_CRC_ENDS:nonce_begins], nonce_begins + _NONCE
        place = _place(head, section, job_id if head[0] == _BOUND else None, tenant)
        try:
            return cipher.decrypt(cell[nonce_begins:ends], cell[ends:], place)
        except InvalidTag:
            raise SealError(
                f"{section}: does not open with key {key_id!r}: it was changed, or was sealed for another job, section "
                "or tenant"
            ) from None

    def key_of(self, cell: bytes, section: str) -> str:
        """The id of the key that the cell says it is sealed with; empty if it is not sealed."""
        return _parsed(cell, section)[0] if cell.startswith(b"%c" % SEALED) else ""

    def reseal(self, cell: bytes, section: str, job_id: bytes | None, tenant: str = "") -> bytes:
        """The cell sealed with the key that seals now; the same cell if it is."""
        key_id, _ = _parsed(cell, section)
        plain = self.open(cell, section, job_id, tenant)
        if key_id == self.seals_with:
            return cell
        return self.seal(plain, section, job_id, tenant)


def read_keyring(source: str) -> Keyring:
    """The keys that a setting names: ``file:/path``, ``env:NAME`` or ``module:function``."""
    kind, _, name = source.partition(":")
    match kind:
        case "file":
            given: Any = _file(Path(name))
        case "env":
            given = os.environ.get(name)
            if given is None:
                raise ConfigError(f"{_SETTING}: expected keys in the environment variable {name}, but it is not set")
        case _:
            given = _called(kind, name)
    keys = _listed(given) if isinstance(given, str) else given
    if not isinstance(keys, Mapping):
        raise ConfigError(f"{_SETTING}: expected text or a mapping of ids to keys, got {type(keys).__name__}")
    return Keyring({_checked_id(name, f"key {n}"): _key(name, key) for n, (name, key) in enumerate(keys.items(), 1)})


def _file(path: Path) -> str:
    try:
        with path.open(encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            if mode & 0o077:
                raise ConfigError(f"{_SETTING}: {path} is open to others, mode {mode:04o}; run: chmod 600 {path}")
            return file.read()
    except OSError as error:
        raise ConfigError(f"{_SETTING}: expected a file of keys at {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{_SETTING}: expected lines of text in {path}, each {_FORM}") from None


def _called(module: str, function: str) -> Any:
    try:
        return getattr(import_module(module), function)()
    except Exception as error:  # its message may say more than others should read
        raise ConfigError(f"{_SETTING}: no keys from a function of {module}: {type(error).__name__}") from error


def _listed(text: str) -> dict[str, str]:
    """Keys in a file or a variable: one per line, or separated by commas. ``#`` begins a comment."""
    found: dict[str, str] = {}
    lines = [line.partition("#")[0] for line in text.splitlines()]
    for number, entry in enumerate(filter(str.strip, ",".join(lines).split(",")), 1):
        name, colon, key = map(str.strip, entry.partition(":"))
        if not colon:
            raise ConfigError(f"{_SETTING}: key {number}: expected {_FORM}, got no colon")
        if _checked_id(name, f"key {number}") in found:
            raise ConfigError(f"{_SETTING}: expected each id once, got {name!r} twice")
        found[name] = key
    return found


def _checked_id(name: object, what: str) -> str:
    """Not shown if it is wrong: it may be a key."""
    if not isinstance(name, str) or not _KEY_ID.fullmatch(name):
        raise ConfigError(f"{_SETTING}: {what}: expected an id of 1 to 32 letters, digits, dots, dashes or underscores")
    return name


def _key(name: str, given: object) -> bytes:
    if isinstance(given, str):
        try:
            key = bytes.fromhex(given) if _HEX.fullmatch(given) else b64decode(_standard(given), validate=True)
        except ValueError:
            key = b""
        size = f"text of {len(given)} characters"
    else:
        key = given if isinstance(given, bytes) else b""
        size = f"{len(key)} bytes" if key else type(given).__name__
    if len(key) != _KEY_BYTES:
        raise ConfigError(
            f"{_SETTING}: key {name!r}: expected {_KEY_BYTES} bytes, or these as base64 or hex, got {size}"
        )
    return key


def _standard(text: str) -> str:
    """Base64 in its usual alphabet, with its padding."""
    return text.rstrip("=").replace("-", "+").replace("_", "/") + "=" * (-len(text.rstrip("=")) % 4)


def _cipher(key: bytes) -> AESGCMSIV:
    try:
        return AESGCMSIV(key)
    except UnsupportedAlgorithm:
        raise ConfigError(
            "sealing needs AES-GCM-SIV, which this build of cryptography does not have; use its wheels, or OpenSSL 3.2"
        ) from None


def _head(scheme: int, key_id: str) -> bytes:
    return b"%c%c%b" % (scheme, len(key_id), key_id.encode())


def _parsed(cell: bytes, section: str) -> tuple[str, int]:
    """The id of the key, and where the nonce begins."""
    if not cell.startswith(b"%c" % SEALED):
        raise SealError(
            f"{section}: expected a sealed cell, got one that is not sealed; while a store changes over to sealing, "
            "set payloads.sealing.read_unsealed"
        )
    begins = _ID_BEGINS + cell[_ID_BEGINS - 1] if len(cell) >= _ID_BEGINS else len(cell)
    if len(cell) < begins + _NONCE + _TAG:
        raise SealError(
            f"{section}: expected a sealed cell, got {len(cell)} bytes, which are too few; it was cut short"
        )
    if crc32(cell[_CRC_ENDS:]) != int.from_bytes(cell[1:_CRC_ENDS], "big"):
        raise SealError(f"{section}: the checksum does not match; the stored bytes are damaged")
    if cell[_CRC_ENDS] not in (_BOUND, _UNBOUND):
        raise SealError(
            f"{section}: expected a known way of sealing, got {cell[_CRC_ENDS]}; a newer version may have it"
        )
    return cell[_ID_BEGINS:begins].decode("ascii", "backslashreplace"), begins


def _place(head: bytes, section: str, job_id: bytes | None, tenant: str) -> bytes:
    """What a sealed cell is bound to, as one string of bytes. No section contains NUL, and an id has a fixed size."""
    return b"%b%b\0%b\0%b" % (head, section.encode(), tenant.encode(), job_id or b"")
