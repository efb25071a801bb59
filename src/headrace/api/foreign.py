"""Reads where a store is from what a program is connected with already: clients, pools and engines of other libraries.

Nothing of them is used but their settings: a store needs connections of its own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from inspect import getclosurevars
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from headrace.errors import ConfigError
from headrace.text import shown, url_without_secrets

log = logging.getLogger("headrace")


class RedisClient(Protocol):
    """A client of redis-py or valkey-py, async or not."""

    @property
    def connection_pool(self) -> Any: ...


class PsycopgPool(Protocol):
    """A pool of psycopg_pool, async or not."""

    @property
    def conninfo(self) -> Any: ...


class Engine(Protocol):
    """An engine of SQLAlchemy, async or not."""

    @property
    def url(self) -> Any: ...


Connected = RedisClient | PsycopgPool | Engine
"""What a program is connected with already."""


def url_of(given: object) -> str:
    """The URL of the store that ``given`` leads to. Raises ``ConfigError`` if that cannot be read from it."""
    library = type(given).__module__.partition(".")[0]
    kind = f"{library}.{type(given).__name__}"
    match library:
        case "redis" | "valkey":
            return _of_redis(given, kind)
        case "psycopg_pool":
            return _of_psycopg(given, kind)
        case "sqlalchemy":
            return _of_sqlalchemy(given, kind)
        case "psycopg" | "psycopg2" | "asyncpg":
            raise ConfigError(
                f"url: expected text like postgresql://host/database, got {kind}; give the text that it was "
                "made with. To enqueue in a transaction of yours, use app.bind(connection)"
            )
    raise ConfigError(
        "url: expected text like sqlite:///jobs.db, a client of redis-py, a pool of psycopg_pool or an engine of "
        f"SQLAlchemy, got {shown(given)}"
    )


_REDIS_REFUSED = (
    "credential_provider", "redis_connect_func", "ssl_ca_data", "ssl_ca_path", "ssl_ciphers",
    "ssl_exclude_verify_flags", "ssl_include_verify_flags", "ssl_min_version", "ssl_ocsp_context",
    "ssl_ocsp_expected_cert", "ssl_password", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled",
)  # fmt: skip
"""What would be lost, and must not be."""


def _of_redis(given: Any, kind: str) -> str:
    pool = getattr(given, "connection_pool", None)
    if pool is None or hasattr(pool, "service_name"):
        raise _told(kind, "a URL like redis+sentinel://host:26379?master=NAME or redis+cluster://host:7000")
    said: Mapping[str, Any] = getattr(pool, "connection_kwargs", {})
    if lost := [name for name in _REDIS_REFUSED if said.get(name)]:
        raise _told(kind, f"a URL: its {lost[0]} cannot be carried over")
    login = ""
    if said.get("password") is not None:
        login = f"{quote(str(said.get('username') or ''), safe='')}:{quote(str(said['password']), safe='')}@"
    elif said.get("username") is not None:
        raise _told(kind, "a URL with user and password: it has a user without one")
    if said.get("path") is not None:
        query = urlencode({"database": said["db"]}) if said.get("db") else ""
        return f"redis+unix://{login}{quote(str(said['path']))}" + (f"?{query}" if query else "")
    secure = "SSL" in str(getattr(pool, "connection_class", type(None)).__name__)
    host = str(said.get("host", "localhost"))
    server = f"[{host}]" if ":" in host else host
    options = _redis_tls(said, kind) if secure else {}
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return f"redis{'s' if secure else ''}://{login}{server}:{said.get('port', 6379)}/{said.get('db') or 0}{query}"


def _redis_tls(said: Mapping[str, Any], kind: str) -> dict[str, str]:
    names = {"ssl_ca_certs": "ca", "ssl_certfile": "cert", "ssl_keyfile": "key"}
    options = {ours: str(said[theirs]) for theirs, ours in names.items() if said.get(theirs) is not None}
    required = str(said.get("ssl_cert_reqs", "required"))
    if required in ("none", "VerifyMode.CERT_NONE", "0"):
        options["verify"] = "no"
    elif said.get("ssl_check_hostname") is False:
        raise _told(kind, "a URL: it checks certificates but no host names, and that cannot be carried over")
    return options


def _of_psycopg(given: Any, kind: str) -> str:
    from psycopg.conninfo import conninfo_to_dict

    conninfo, more = getattr(given, "conninfo", None), getattr(given, "kwargs", None) or {}
    if not isinstance(conninfo, str) or not isinstance(more, Mapping):
        raise _told(kind, "a URL like postgresql://host/database: its own is made by a function")
    if getattr(given, "_configure", None) is not None:
        raise _told(kind, "a URL: what its configure= does cannot be carried over")
    known = conninfo_to_dict(conninfo) | {
        name: value for name, value in more.items() if name not in _PSYCOPG_OWN and value is not None
    }
    return _libpq({name: str(value) for name, value in known.items()})


_PSYCOPG_OWN = {"autocommit", "row_factory", "prepare_threshold", "cursor_factory", "context"}
"""Arguments of psycopg's connections that say nothing about where they lead."""


def _of_sqlalchemy(given: Any, kind: str) -> str:
    url = getattr(given, "url", None)
    if url is None or url.get_backend_name() not in ("postgresql", "sqlite"):
        raise _told(kind, "an engine on PostgreSQL or SQLite, or a URL")
    more = _beyond_its_url(given, kind)
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:":
            raise _told(kind, "a file, or the URL memory://: nobody else can see its database in memory")
        if url.database.startswith("file:"):
            raise _told(kind, "a URL like sqlite:///jobs.db: its database is a URI of SQLite's own")
        return f"sqlite:///{quote(url.database)}"
    said = {"user": url.username, "password": url.password, "host": url.host, "port": url.port, "dbname": url.database}
    known = said | dict(url.query) | more
    if url.get_driver_name() == "asyncpg" and isinstance(known.get("ssl"), str):
        known["sslmode"] = known.pop("ssl")  # the same words
    if lost := [name for name, value in known.items() if not isinstance(value, str | int | None)]:
        raise _told(kind, f"a URL: its {lost[0]} cannot be carried over")
    return _libpq({name: str(value) for name, value in known.items() if value is not None})


_SQLALCHEMY_OWN = _PSYCOPG_OWN | {"check_same_thread", "command_timeout", "timeout"}
"""Arguments of connections that say nothing about where they lead."""


def _beyond_its_url(given: Any, kind: str) -> dict[str, Any]:
    """What an engine connects with that its URL does not say: its ``connect_args``. One that is connected by a function
    is refused: nobody else can know where that leads."""
    engine = getattr(given, "sync_engine", given)
    connects: Any = getattr(engine.pool, "_creator", None)
    if getattr(connects, "__module__", "") != "sqlalchemy.engine.create" or list(engine.dialect.dispatch.do_connect):
        raise _told(kind, "a URL: it is connected by a function")
    found = getclosurevars(connects).nonlocals.get("cparams")
    if not isinstance(found, Mapping):
        raise _told(kind, "a URL")
    known = engine.dialect.create_connect_args(engine.url)[1]
    return {
        name: value
        for name, value in found.items()
        if name not in _SQLALCHEMY_OWN and (name not in known or known[name] != value)
    }


def _libpq(said: dict[str, str]) -> str:
    """A PostgreSQL URL of these parts. Lists of hosts and sockets go into its query."""
    user, password, database = said.pop("user", ""), said.pop("password", ""), said.pop("dbname", "")
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    host = said.get("host", "")
    server = ""
    if host and not set(host) & set("/,:@%"):
        server = said.pop("host") + (f":{said.pop('port')}" if "port" in said else "")
    query = f"?{urlencode(said, quote_via=quote)}" if said else ""
    return f"postgresql://{login + '@' if login else ''}{server}/{quote(database, safe='')}{query}"


def _told(kind: str, instead: str) -> ConfigError:
    return ConfigError(f"url: where {kind} leads cannot be read from it; give {instead}")


_warned: set[str] = set()


def tell_contradiction(url: object, instead: str) -> None:
    """Warn once if the code names one store and ``HEADRACE_URL`` another: the code wins, which may surprise."""
    said = os.environ.get("HEADRACE_URL")
    if not isinstance(url, str) or said is None or said == url or url in _warned:
        return
    _warned.add(url)
    log.warning(
        "the code says %s, and the environment variable HEADRACE_URL says %s; the code wins. Write %s to leave the "
        "store to the environment",
        url_without_secrets(url),
        url_without_secrets(said),
        instead,
    )
