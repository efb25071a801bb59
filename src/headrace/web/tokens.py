"""Who may do what over HTTP: tokens, each with a name and a role."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from base64 import b64decode
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from headrace.api.client import Client
from headrace.core.documents import change_document
from headrace.errors import ConfigError, HeadraceError

_SHORTEST = 16
_SECRET = 32
_DOCUMENT = "http/secret"
_SETTING = "http.tokens"
_FORM = "lines of: role name token"


class Role(StrEnum):
    """What a token is good for. Each role may do what the ones before it may."""

    PROBE = "probe"
    """Health, metrics and numbers for autoscalers."""
    VIEWER = "viewer"
    """Everything that changes nothing."""
    OPERATOR = "operator"
    """Changes too, if the server allows them."""

    def covers(self, other: Role) -> bool:
        """Whether it may do what the other may."""
        order = list(Role)
        return order.index(self) >= order.index(other)


class Principal(Struct, frozen=True):
    """Who asks."""

    name: str
    role: Role


LOCAL = Principal("local", Role.OPERATOR)
"""Whoever asks a server without tokens, which only this machine can reach."""


class Tokens:
    """Tokens by their hashes. The tokens themselves are not kept, and comparing takes the same time for all."""

    def __init__(self, entries: list[tuple[Principal, str]], client: Client | None = None) -> None:
        self._entries = [(principal, _hashed(token)) for principal, token in entries]
        together = hashlib.sha256(b"".join(digest for _, digest in self._entries)).digest()
        self._secret = together if entries else secrets.token_bytes(_SECRET)
        self._client = None if entries else client
        """Of the store whose secret is not known yet."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    def find(self, authorization: str | None) -> Principal | None:
        """Who sent this header: ``Bearer TOKEN``, or ``Basic`` with the name and the token."""
        given, name = _given(authorization)
        digest = _hashed(given)
        found = None
        for principal, known in self._entries:
            if hmac.compare_digest(digest, known) and (name is None or name == principal.name):
                found = principal
        return found if given else None

    def csrf(self, principal: Principal) -> str:
        """What a browser's form has to bring along. The same in all processes with the same tokens, and once they
        agree, in all of one store without tokens."""
        return hmac.new(self._secret, f"csrf {principal.name}".encode(), hashlib.sha256).hexdigest()

    async def agree(self) -> None:
        """Without tokens: use the secret that the store keeps for all processes, as soon as it answers."""
        if self._client is None:
            return
        with suppress(HeadraceError):
            documents = (await self._client.backend()).documents
            if documents is not None:
                await change_document(documents, _DOCUMENT, lambda kept: kept or self._secret)
                [found] = await documents.get([_DOCUMENT])
                self._secret = self._secret if found is None else found.body
            self._client = None

    def is_csrf(self, given: str, principal: Principal) -> bool:
        """Whether it is that."""
        return hmac.compare_digest(given.encode(), self.csrf(principal).encode())


def is_bearer(authorization: str | None) -> bool:
    """Whether the header is one that no browser adds by itself."""
    return authorization is not None and authorization[:7].lower() == "bearer "


def read_tokens(source: str | None, client: Client | None = None) -> Tokens:
    """The tokens that a setting names: ``file:/path`` or ``env:NAME``. In a variable, semicolons end lines too.
    ``client``: of the store whose processes share a secret if they have no tokens."""
    if source is None:
        return Tokens([], client)
    kind, _, place = source.partition(":")
    try:
        text = Path(place).read_text("utf-8") if kind == "file" else os.environ[place].replace(";", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{_SETTING}: {place} cannot be read: {error}") from error
    except KeyError:
        raise ConfigError(f"{_SETTING}: there is no environment variable {place}") from None
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    entries = [_entry(number, words) for number, words in enumerate(lines, 1)]
    if not entries:
        raise ConfigError(f"{_SETTING}: expected {_FORM}, got none")
    if len({principal.name for principal, _ in entries}) < len(entries):
        raise ConfigError(f"{_SETTING}: expected each name once")
    return Tokens(entries)


def _entry(number: int, words: list[str]) -> tuple[Principal, str]:
    """No message quotes a line: what is mistyped may be a token."""
    if len(words) != 3 or words[0] not in list(Role):
        raise ConfigError(f"{_SETTING}: entry {number}: expected {_FORM}; roles are {', '.join(Role)}")
    role, name, token = words
    if len(token) < _SHORTEST:
        made = "make one with: python -c 'import secrets; print(secrets.token_urlsafe())'"
        raise ConfigError(f"{_SETTING}: entry {number}: expected a token of at least {_SHORTEST} characters; {made}")
    return Principal(name, Role(role)), token


def _hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _given(authorization: str | None) -> tuple[str, str | None]:
    """The token of the header, and the name beside it."""
    kind, _, rest = (authorization or "").partition(" ")
    if kind.lower() == "bearer":
        return rest.strip(), None
    if kind.lower() == "basic":
        try:
            name, _, token = b64decode(rest, validate=True).decode().partition(":")
        except ValueError:
            return "", None
        return token, name
    return "", None
