"""Where a store of two servers is."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlsplit

from msgspec import Struct
from msgspec.structs import asdict, replace

from headrace.core.config import Settings
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


def with_objects(settings: Settings) -> Settings:
    """The same, with the object store that the URL of a streams store names."""
    if not settings.url.startswith("streams:"):
        return settings
    url = dict(parse_qsl(urlsplit(settings.url).query.replace("+", "%2B"))).get("objects")
    return settings if url is None else replace(settings, objects=replace(settings.objects, url=url))
