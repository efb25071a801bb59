"""The setting ``HEADRACE`` of a Django project."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit, urlunsplit

from django.conf import settings
from django.db import connections
from msgspec import Struct, convert, field
from msgspec import ValidationError as Invalid

from headrace.backends.service_file import service_options
from headrace.core.names import did_you_mean
from headrace.errors import ConfigError
from headrace.text import shown, without_secrets

_IGNORED = frozenset({"pool", "isolation_level", "server_side_binding", "assume_role", "prepare_threshold"})
"""Options of Django's PostgreSQL databases that are not libpq's."""


class Configuration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="upper"):
    """What ``HEADRACE`` may say. Everything has a default."""

    app: str | None = None
    """``module:attr`` of an app that you make yourself; then only ``database`` and ``tasks_module`` count beside it."""
    url: str | None = None
    """The store."""
    database: str | None = None
    """Or an alias of ``DATABASES``: jobs are in that PostgreSQL database, beside your tables. With ``app``: it keeps
    them there, by its own URL."""
    options: dict[str, str] = field(default_factory=dict)
    """What to add to the URL of that database: ``schema``, ``pooled``, ``listen``, ``migrate``."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of Headrace: ``{"worker": {"concurrency": 20}}``."""
    tasks_module: str = "tasks"
    """The module of each installed app that has tasks."""


def configuration() -> Configuration:
    """What the project says. Raises ``ConfigError``."""
    given = getattr(settings, "HEADRACE", {})
    if not isinstance(given, Mapping):
        raise ConfigError(f"HEADRACE: expected a dict, got {shown(given)}")
    names = [name.upper() for name in Configuration.__struct_fields__]
    for name in given:
        if name not in names:
            hint = did_you_mean(str(name).upper(), names) or f"; there are: {', '.join(names)}"
            raise ConfigError(f"HEADRACE: unknown setting {shown(name)}{hint}")
    try:
        found = convert(dict(given), Configuration)
    except Invalid as error:
        raise ConfigError(f"HEADRACE: {error}") from None
    if found.url is not None and found.database is not None:
        raise ConfigError("HEADRACE: expected URL or DATABASE, got both")
    return found


def alias_of(given: Configuration) -> str | None:
    """The Django database that jobs are in; None if the store is elsewhere. Without a word on the store, it is the
    default database if that is PostgreSQL."""
    if given.database is not None:
        if given.database not in connections.settings:
            known = ", ".join(connections.settings)
            raise ConfigError(f"HEADRACE: DATABASE: no {shown(given.database)} in DATABASES; there are: {known}")
        if not _is_postgres(given.database):
            engine = connections.settings[given.database]["ENGINE"]
            raise ConfigError(
                f"HEADRACE: DATABASE: expected an alias of a PostgreSQL database, got {given.database!r} of {engine}; "
                "give a URL instead, such as sqlite:////srv/shop/jobs.db"
            )
        return given.database
    if given.url is None and given.app is None and "HEADRACE_URL" not in os.environ and _is_postgres("default"):
        return "default"
    return None


def check_app(alias: str, url: str) -> None:
    """Refuse an app whose store is not in this Django database."""
    name = str(connections.settings[alias].get("NAME") or "")
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres") or unquote(parts.path[1:]) != name:
        raise ConfigError(
            f"HEADRACE: DATABASE: expected that APP keeps its jobs in {alias!r}, the PostgreSQL database {name!r}, got "
            f"{without_secrets(url)}; leave out DATABASE, or give the app that database's URL"
        )


def renamed(url: str, name: str) -> str:
    """The URL of another database of the same server.

    >>> renamed("postgresql://me@db/shop?schema=jobs", "test_shop")
    'postgresql://me@db/test_shop?schema=jobs'
    """
    return urlunsplit(urlsplit(url)._replace(path=f"/{quote(name, safe='')}"))


def _is_postgres(alias: str) -> bool:
    return bool(connections[alias].vendor == "postgresql")


def database_url(parameters: Mapping[str, Any], options: Mapping[str, str]) -> str:
    """The URL of a Django database. Headrace connects there as Django does, also as to TLS.

    >>> database_url({"NAME": "shop", "USER": "me", "PASSWORD": "a/b", "HOST": "", "PORT": 5432, "OPTIONS": {}}, {})
    'postgresql://me:a%2Fb@:5432/shop?sslmode=prefer'
    >>> database_url({"NAME": "shop", "HOST": "/var/run/pg", "OPTIONS": {"sslmode": "require"}}, {"schema": "jobs"})
    'postgresql:///shop?sslmode=require&host=%2Fvar%2Frun%2Fpg&schema=jobs'
    """
    given = {name: str(value) for name, value in dict(parameters.get("OPTIONS") or {}).items() if name not in _IGNORED}
    query = {} if "sslmode" in service_options(given) or "PGSSLMODE" in os.environ else {"sslmode": "prefer"}
    query |= given
    host, port = str(parameters.get("HOST") or ""), str(parameters.get("PORT") or "")
    if host.startswith(("/", "@")) or "," in host or ":" in host:
        query |= {"host": host} | ({"port": port} if port else {})
        host = port = ""
    user, password = (quote(str(parameters.get(name) or ""), safe="") for name in ("USER", "PASSWORD"))
    login = f"{user}{f':{password}' if password else ''}@" if user else ""
    where = f"{login}{quote(host, safe='')}{f':{port}' if port else ''}"
    name = quote(str(parameters.get("NAME") or ""), safe="")
    return f"postgresql://{where}/{name}?{urlencode(query | dict(options), quote_via=quote, safe='')}"
