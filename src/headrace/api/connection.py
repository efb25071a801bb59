"""The composition root: from a URL to a client. The only file that knows the backends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from headrace.api.client import Client
from headrace.api.foreign import Connected, url_of
from headrace.api.streams import Streams, with_objects
from headrace.core.config import Settings
from headrace.core.settings_options import SettingsOptions
from headrace.errors import ConfigError
from headrace.seam.protocol import Backend
from headrace.text import shown, url_without_secrets

if TYPE_CHECKING:
    from headrace.backends.postgres import PostgresBackend
    from headrace.backends.postgres.schema import Migrator

ARROW = re.compile(r"(?:^|\s)->(?:\s|$)|->(?=[a-z+]+://)")
"""Between the URLs of a store that moves and of the one that it moves to."""
BAR = re.compile(r"(?:^|\s)\|(?:\s|$)")
"""Between the shards of a store that is made of several. A bar without blanks belongs to a name or a password."""
_HALF = re.compile(r"://[^/?@]*:(?!\d*(?:[/?]|$))")
"""The beginning of a URL whose login was cut off before its end."""
_REDIS = re.compile(r"(redis|valkey)s?(\+(cluster|sentinel|unix))?")
_POSTGRES = re.compile("postgres(ql)?")
_SPECIAL = "{}*?[]^\\"
"""What a prefix cannot contain: braces mark parts of keys, and the rest are wildcards in an ACL."""
_ENCODE = (
    'Percent-encode what is special in a password or name: "/" is %2F, "%" is %25, "?" is %3F, "#" is %23, "@" is %40'
)


def connect(url: str | Settings | Streams | Connected | None = None, **overrides: Unpack[SettingsOptions]) -> Client:
    """A client for the store at ``url``; opened on first use, or by ``async with``. Instead of a URL, it takes
    :class:`Streams`; or a client of redis-py, a pool of psycopg or an engine of SQLAlchemy, and reads from it where the
    store is.

    >>> connect("memory://").settings.url
    'memory://'
    """
    if isinstance(url, Settings):
        if overrides:
            raise ConfigError(f"expected Settings or single settings, got both: Settings and {sorted(overrides)[0]!r}")
        settings = url
    elif isinstance(url, Streams):
        settings = Settings.load({**overrides, "url": url.url})
    else:
        found = {} if url is None else {"url": url if isinstance(url, str) else url_of(url)}
        settings = Settings.load({**overrides, **found})
    backend = open_backend(settings.url)
    return Client(backend, with_objects(settings, _places(settings.url)))


def open_backend(url: str, *, copy: bool = True) -> Backend:
    """The backend of a store URL, not opened yet. ``copy``: what counts for a PostgreSQL whose URL does not say
    ``copy=``."""
    if not isinstance(url, str):
        raise ConfigError(f"store URL: expected text like sqlite:///jobs.db, got {shown(url)}")
    if BAR.search(url):
        return _router(url, copy)
    if ARROW.search(url):
        return _moving(url, copy)
    try:
        url.encode()
        parts = urlsplit(url)
        given = parse_qsl(parts.query.replace("+", "%2B"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise _unreadable(url) from None
    options = dict(given)
    if parts.fragment or len(options) < len(given) or any(c.isspace() or not c.isprintable() for c in url):
        raise ConfigError(
            f"store URL: a part of {shown(url_without_secrets(url))} would be lost: a fragment, blank or repeated "
            f"option. {_ENCODE}"
        )
    match parts.scheme:
        case "memory":
            if parts.netloc or parts.path:
                raise ConfigError(f"store URL: expected memory:// alone, got {shown(url_without_secrets(url))}")
            backend: Backend = _memory(options, url)
        case "sqlite":
            backend = _sqlite(parts.netloc, parts.path, options, url)
        case "postgresql" | "postgres":
            backend = _postgres(options, url, copy=copy)
        case scheme if _REDIS.fullmatch(scheme) and "://" in url:
            backend = _redis(options, url)
        case "streams":
            if parts.netloc or parts.path:
                raise ConfigError(
                    f"store URL: expected streams://?pg=…&valkey=…, got {shown(url_without_secrets(url))}"
                )
            backend = _streams(options, url, copy)
        case _:
            raise ConfigError(
                "store URL: expected memory://, sqlite:///path, postgresql://…, redis://… or streams://?pg=…&valkey=…, "
                f"got {url_without_secrets(url)!r}"
            )
    return backend


def _router(url: str, copy: bool) -> Backend:
    """Shards, each with a name, and then the routes, with bars between them."""
    from headrace.routing.sharded import Router

    *named, routes = (part.strip() for part in BAR.split(url))
    shards: dict[str, Backend] = {}
    for part in named:
        name, equals, address = (piece.strip() for piece in part.partition("="))
        if not equals or not name or name in shards or "://" in name:
            raise ConfigError(
                "store URL: expected NAME = URL | NAME = URL | ROUTES, each name once, "
                f"got {shown(url_without_secrets(part if '@' in part or '@' not in url else url))}"
            )
        shards[name] = _part_of(url, address, copy)
    return Router(shards, routes)


def _moving(url: str, copy: bool) -> Backend:
    """Two URLs with an arrow between them: a store that may move from the first to the second."""
    from headrace.routing.moving import Moving

    parts = [part.strip() for part in ARROW.split(url)]
    if len(parts) != 2 or not all(parts):
        raise ConfigError(
            f"store URL: expected one store, or two with one arrow between them, got {shown(url_without_secrets(url))}"
        )
    if parts[0] == parts[1]:
        raise ConfigError("store URL: expected two different stores around the arrow, got one twice")
    return Moving(*(_part_of(url, part, copy) for part in parts))


def _part_of(url: str, part: str, copy: bool) -> Backend:
    """The backend of one of several URLs. Where a password was cut in two, no message shows half of it."""
    inner = part.split("&") if part.startswith("streams://") else [part]
    if any(_HALF.search(one) for one in inner) and "@" not in part:
        raise _unreadable(url)
    return open_backend(part, copy=copy)


def _places(url: str) -> list[str]:
    """The URLs of the stores that the one at ``url`` is made of."""
    if not BAR.search(url):
        return [part.strip() for part in ARROW.split(url)]
    *named, _ = BAR.split(url)
    return [place for part in named for place in _places(part.partition("=")[2].strip())]


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
            f"expected sqlite:///relative/path.db or sqlite:////absolute/path.db, got {url_without_secrets(url)!r}"
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


def _postgres(options: dict[str, str], url: str, *, copy: bool = True, behind_windows: bool = False) -> PostgresBackend:
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
    copy = _switch(options, "copy", copy)
    base, _, _ = url.partition("?")
    rest = urlencode(options, quote_via=quote)
    conninfo = f"{base}?{rest}" if rest else base
    _check_conninfo(conninfo, url, options)
    kind = PostgresBackend
    if behind_windows:
        from headrace.backends.streams.truth import Truth

        kind = Truth
    return kind(
        conninfo,
        where=url_without_secrets(base),
        schema=schema,
        listen=listen,
        prepare=not pooled,
        migrate=migrate,
        copy=copy,
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
    endpoint = parse(base, options, url_without_secrets(base))
    shards = options.pop("shards", None) if endpoint.mode is Mode.CLUSTER else None
    _no_more(options, url, partial(unknown, base.partition("://")[0]))
    if endpoint.mode is not Mode.CLUSTER:
        return RedisBackend(endpoint, prefix=prefix, listen=listen)
    if shards is not None and not (shards.isascii() and shards.isdigit() and 1 <= int(shards) <= 1_024):
        raise ConfigError(f"shards: expected a number from 1 to 1024, got {shown(shards)}")
    return ClusterBackend(endpoint, prefix=prefix, listen=listen, shards=None if shards is None else int(shards))


def _streams(options: dict[str, str], url: str, copy: bool) -> Backend:
    try:
        from headrace.backends.redis import Mode, parse, unknown
    except ImportError as error:
        raise ConfigError(f"Valkey needs hiredis ({error}); install: pip install 'headrace[redis]'") from error

    pg, valkey = _inner(options, "pg"), _inner(options, "valkey")
    if not _POSTGRES.fullmatch(urlsplit(pg).scheme):
        raise ConfigError(f"pg: expected a URL like postgresql://db/jobs, got {shown(url_without_secrets(pg))}")
    if not _REDIS.fullmatch(urlsplit(valkey).scheme):
        raise ConfigError(f"valkey: expected a URL like redis://host:6379, got {shown(url_without_secrets(valkey))}")
    truth = _postgres(_options_of(pg), pg, copy=copy, behind_windows=True)
    from headrace.backends.streams import StreamsBackend, StreamsOptions
    from headrace.backends.streams.truth import Truth

    at_valkey = _options_of(valkey)
    prefix = at_valkey.pop("prefix", "headrace")
    base = valkey.partition("?")[0]
    endpoint = parse(base, at_valkey, url_without_secrets(base))
    _no_more(at_valkey, valkey, partial(unknown, base.partition("://")[0]))
    if endpoint.mode is Mode.CLUSTER:
        raise ConfigError("valkey: expected one server, or sentinels, got a cluster: windows lie on one server")
    numbers = {name: _number(options.pop(name), name) for name in ("window", "count", "entry_bytes") if name in options}
    horizon = {"horizon": _number(options.pop("horizon"), "horizon") * 1_000_000} if "horizon" in options else {}
    chosen = StreamsOptions(**numbers, **horizon, consumer=options.pop("consumer", ""))
    options.pop("objects", None)  # ``connect`` has read it
    _no_more(options, url, _among(["pg", "valkey", "objects", "window", "count", "entry_bytes", "horizon", "consumer"]))
    assert isinstance(truth, Truth)
    return StreamsBackend(truth, endpoint, prefix=prefix, options=chosen)


def _inner(options: dict[str, str], name: str) -> str:
    if name not in options:
        raise ConfigError(f"store URL: expected streams://?pg=postgresql://…&valkey=redis://…, but {name} is missing")
    return options.pop(name)


def _options_of(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query.replace("+", "%2B"), keep_blank_values=True))


def _number(given: str, name: str) -> int:
    if not (given.isascii() and given.isdigit() and len(given) <= 12):
        raise ConfigError(f"{name}: expected a whole number, got {shown(given)}")
    return int(given)


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
    if given.get("sslmode", "prefer") not in _SSL_MODES:
        raise ConfigError(f"sslmode: expected one of {', '.join(_SSL_MODES)}, got {shown(given['sslmode'])}")


def _unreadable(url: str, why: str = "") -> ConfigError:
    return ConfigError(f"store URL: {shown(url_without_secrets(url))} cannot be read{why}. {_ENCODE}")


def _switch(options: dict[str, str], name: str, default: bool) -> bool:
    given = options.pop(name, "yes" if default else "no")
    if given not in ("yes", "no"):
        raise ConfigError(f"{name}: expected 'yes' or 'no', got {shown(given)}")
    return given == "yes"


_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_Told = Callable[[str, str], str]
"""The message about an unknown option and its value."""


def _among(known: Iterable[str] = (), more: str = "") -> _Told:
    names = ", ".join(sorted(known))
    return lambda name, _: f"unknown option {shown(name)}. Known here: {names or 'none'}{more}"


def _no_more(options: dict[str, str], url: str, told: _Told) -> None:
    if options:
        name = min(options)
        # What is unknown may be a secret: a password under a mistyped name.
        raise ConfigError(f"{url_without_secrets(url.partition('?')[0])!r}: {told(name, options[name])}")
