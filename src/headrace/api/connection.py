"""The composition root: from a URL to a client. The only file that knows the backends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from headrace.api.client import Client
from headrace.core.config import Settings
from headrace.errors import ConfigError
from headrace.seam.protocol import Backend
from headrace.text import shown
from headrace.text import without_secrets as hidden

if TYPE_CHECKING:
    from headrace.backends.postgres.schema import Migrator

_REDIS = re.compile(r"(redis|valkey)s?(\+(cluster|sentinel|unix))?")
_SPECIAL = "{}*?[]^\\"
"""What a prefix cannot contain: braces mark parts of keys, and the rest are wildcards in an ACL."""
_ENCODE = (
    'Percent-encode what is special in a password or name: "/" is %2F, "%" is %25, "?" is %3F, "#" is %23, "@" is %40'
)


def connect(url: str | Settings | None = None, **overrides: object) -> Client:
    """A client for the store at ``url``; opened on first use, or by ``async with``.

    >>> connect("memory://").settings.url
    'memory://'
    """
    if isinstance(url, Settings):
        if overrides:
            raise ConfigError(f"expected Settings or single settings, got both: Settings and {sorted(overrides)[0]!r}")
        settings = url
    else:
        settings = Settings.load(overrides | ({} if url is None else {"url": url}))
    return Client(open_backend(settings.url), settings)


def open_backend(url: str) -> Backend:
    """The backend of a store URL, not opened yet."""
    if not isinstance(url, str):
        raise ConfigError(f"store URL: expected text like sqlite:///jobs.db, got {shown(url)}")
    try:
        url.encode()
        parts = urlsplit(url)
        given = parse_qsl(parts.query.replace("+", "%2B"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise _unreadable(url) from None
    options = dict(given)
    if parts.fragment or len(options) < len(given) or any(c.isspace() or not c.isprintable() for c in url):
        raise ConfigError(
            f"store URL: a part of {shown(without_secrets(url))} would be lost: a fragment, blank or repeated option. "
            + _ENCODE
        )
    match parts.scheme:
        case "memory":
            if parts.netloc or parts.path:
                raise ConfigError(f"store URL: expected memory:// alone, got {shown(without_secrets(url))}")
            backend: Backend = _memory(options, url)
        case "sqlite":
            backend = _sqlite(parts.netloc, parts.path, options, url)
        case "postgresql" | "postgres":
            backend = _postgres(options, url)
        case scheme if _REDIS.fullmatch(scheme) and "://" in url:
            backend = _redis(options, url)
        case _:
            raise ConfigError(
                "store URL: expected memory://, sqlite:///path, postgresql://… or redis://…, "
                f"got {without_secrets(url)!r}"
            )
    return backend


def migrator(url: str) -> Migrator | None:
    """What migrates the store at ``url`` on command; None for a store that migrates itself when it is opened."""
    return getattr(open_backend(url), "migrator", None)


def _memory(options: dict[str, str], url: str) -> Backend:
    from headrace.backends.memory import MemoryBackend

    _no_more(options, url, _among())
    return MemoryBackend()


def _sqlite(host: str, path: str, options: dict[str, str], url: str) -> Backend:
    from headrace.backends.sqlite import SqliteBackend

    if host or len(path) < 2:
        raise ConfigError(
            f"expected sqlite:///relative/path.db or sqlite:////absolute/path.db, got {without_secrets(url)!r}"
        )
    if path == "/:memory:":
        raise ConfigError(
            "store URL: sqlite:///:memory: would be a file of that name; for a store in memory, use memory://"
        )
    durability = options.pop("durability", "full")
    _no_more(options, url, _among(["durability"]))
    file = Path(unquote(path[1:]))
    if "\0" in str(file) or any(len(part.encode()) > 255 for part in file.parts):
        raise ConfigError(f"expected a valid file path, got {shown(str(file))}")
    match durability:
        case "full" | "normal":
            return SqliteBackend(file, durability=durability)
        case _:
            raise ConfigError(f"durability: expected 'full' or 'normal', got {durability!r}")


def _postgres(options: dict[str, str], url: str) -> Backend:
    try:
        from headrace.backends.postgres import PostgresBackend
    except ImportError as error:
        if "pq wrapper" in str(error):
            raise ConfigError(
                "psycopg is installed, but finds no libpq on this machine; install its binary: "
                "pip install 'headrace[postgres-binary]', or the system's libpq"
            ) from error
        raise ConfigError(
            f"PostgreSQL needs psycopg ({error}); install: pip install 'headrace[postgres-binary]'"
        ) from error

    schema = options.pop("schema", "headrace")
    if not schema or "\0" in schema or len(schema.encode()) > 63 or schema.startswith("pg_") or schema == "$user":
        raise ConfigError(
            "schema: expected a name of at most 63 bytes that does not begin with pg_ and is not $user, got "
            + shown(schema)
        )
    pooled = _switch(options, "pooled", False)
    listen = _switch(options, "listen", not pooled)
    migrate = _switch(options, "migrate", True)
    base, _, _ = url.partition("?")
    rest = urlencode(options, quote_via=quote)
    conninfo = f"{base}?{rest}" if rest else base
    _check_conninfo(conninfo, url, options)
    return PostgresBackend(
        conninfo,
        where=without_secrets(base),
        schema=schema,
        listen=listen,
        prepare=not pooled,
        migrate=migrate,
    )


def _redis(options: dict[str, str], url: str) -> Backend:
    try:
        from headrace.backends.redis import ClusterBackend, Mode, RedisBackend, parse, unknown
    except ImportError as error:
        raise ConfigError(f"Valkey needs hiredis ({error}); install: pip install 'headrace[redis]'") from error

    base, _, query = url.partition("?")
    if "@" in query:
        raise _unreadable(url)
    prefix = options.pop("prefix", "headrace")
    if not prefix or any(c in _SPECIAL or not c.isprintable() for c in prefix):
        raise ConfigError(f"prefix: expected printable text without braces and without *?[]^\\, got {shown(prefix)}")
    listen = _switch(options, "listen", True)
    place = parse(base, options, without_secrets(base))
    shards = options.pop("shards", None) if place.mode is Mode.CLUSTER else None
    _no_more(options, url, partial(unknown, base.partition("://")[0]))
    if place.mode is not Mode.CLUSTER:
        return RedisBackend(place, prefix=prefix, listen=listen)
    if shards is not None and not (shards.isascii() and shards.isdigit() and 1 <= int(shards) <= 1_024):
        raise ConfigError(f"shards: expected a number from 1 to 1024, got {shown(shards)}")
    return ClusterBackend(place, prefix=prefix, listen=listen, shards=None if shards is None else int(shards))


def _check_conninfo(conninfo: str, url: str, options: dict[str, str]) -> None:
    """Refuse what libpq could not read, or would misread. Its own message is not passed on: it quotes the part that it
    dislikes, which may belong to the password."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.pq import Conninfo

    try:
        given = conninfo_to_dict(conninfo)
    except UnicodeDecodeError:
        raise _unreadable(url, ": its percent-encoded text is not UTF-8") from None
    except ProgrammingError:
        known = {option.keyword.decode() for option in Conninfo.get_defaults()} | {"ssl"}
        if "@" not in url.partition("?")[2]:
            others = {name: value for name, value in options.items() if name not in known}
            _no_more(others, url, _among(["schema", "migrate", "pooled", "listen"], " and those of libpq"))
        raise _unreadable(url) from None
    login, at, _ = conninfo.partition("?")[0].rpartition("@")
    if "@" in login or (at and "/" in login.partition("://")[2]):
        raise _unreadable(url)
    if any(port and not port.isdigit() for port in str(given.get("port", "")).split(",")):
        raise _unreadable(url, ": its port is not a number")


def _unreadable(url: str, why: str = "") -> ConfigError:
    return ConfigError(f"store URL: {shown(without_secrets(url))} cannot be read{why}. {_ENCODE}")


def _switch(options: dict[str, str], name: str, default: bool) -> bool:
    given = options.pop(name, "yes" if default else "no")
    if given not in ("yes", "no"):
        raise ConfigError(f"{name}: expected 'yes' or 'no', got {shown(given)}")
    return given == "yes"


_Told = Callable[[str, str], str]
"""The message about an unknown option and its value."""


def _among(known: Iterable[str] = (), more: str = "") -> _Told:
    names = ", ".join(sorted(known))
    return lambda name, _: f"unknown option {shown(name)}. Known here: {names or 'none'}{more}"


def _no_more(options: dict[str, str], url: str, told: _Told) -> None:
    if options:
        name = min(options)
        # What is unknown may be a secret: a password under a mistyped name.
        raise ConfigError(f"{without_secrets(url.partition('?')[0])!r}: {told(name, options[name])}")


def without_secrets(url: str) -> str:
    """The URL as it may be shown: user names and passwords are left out, whatever characters they are made of.

    >>> without_secrets("redis://ada:secret@db:6379/0")
    'redis://***@db:6379/0'
    >>> without_secrets("redis:ada:secret@db:6379/0")
    '***@db:6379/0'
    """
    login, at, rest = url.rpartition("@")
    if at and "://" not in login:
        url = f"***@{rest}"
    return hidden("".join("%20" if c.isspace() else c for c in url))
