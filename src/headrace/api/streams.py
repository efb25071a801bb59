"""Where a store of two servers is."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import parse_qsl, quote, urlsplit

from msgspec import Struct
from msgspec.structs import asdict, replace

from headrace.core.config import Settings
from headrace.errors import ConfigError
from headrace.text import url_without_secrets


class Streams(Struct, frozen=True, kw_only=True):
    """PostgreSQL keeps the jobs, Valkey gives them out, and an object store takes what is large.

    >>> Streams(pg="postgresql://db/jobs", valkey="rediss://cache:6379").url
    'streams://?pg=postgresql://db/jobs&valkey=rediss://cache:6379'
    """

    pg: str
    """The URL of the PostgreSQL store."""
    valkey: str
    """The URL of the Valkey server, or of its sentinels."""
    objects: str | None = None
    """The URL of the object store, as the setting ``objects.url`` has it."""
    window: int | None = None
    """Jobs of one queue that wait in Valkey, at most."""
    count: int | None = None
    """Jobs that one call takes from a window, at most."""
    entry_bytes: int | None = None
    """The largest job that a window takes."""
    horizon: int | None = None
    """Seconds; delayed jobs that are due within it wait in Valkey."""
    consumer: str | None = None
    """What the names of consumers begin with, such as the name of the pod."""

    @property
    def url(self) -> str:
        """The same as a store URL."""
        options = [
            f"{name}={quote(str(value), safe=':/@')}" for name, value in asdict(self).items() if value is not None
        ]
        return "streams://?" + "&".join(options)

    def __repr__(self) -> str:
        return f"Streams({url_without_secrets(self.url)!r})"


def with_objects(settings: Settings, places: Iterable[str]) -> Settings:
    """The same, with the object store that the URLs of streams stores name, of all stores that this one is made of."""
    named = [
        value
        for place in places
        if place.startswith("streams:")
        for name, value in parse_qsl(urlsplit(place).query.replace("+", "%2B"))
        if name == "objects"
    ]
    if not named:
        return settings
    if len(set(named)) > 1:
        told = ", ".join(repr(url_without_secrets(one)) for one in dict.fromkeys(named))
        raise ConfigError(f"objects: expected one for all stores of a URL, got {told}")
    return replace(settings, objects=replace(settings.objects, url=named[0]))
