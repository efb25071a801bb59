"""Where a store of two servers is."""

from __future__ import annotations

from urllib.parse import quote

from msgspec import Struct

from headrace.text import url_without_secrets


class Streams(Struct, frozen=True, kw_only=True):
    """PostgreSQL keeps the jobs, Valkey gives them out, and an object store takes what is large.

    >>> Streams(pg="postgresql://db/jobs", valkey="redis://cache:6379").url
    'streams://?pg=postgresql://db/jobs&valkey=redis://cache:6379'
    """

    pg: str
    """The URL of the PostgreSQL store."""
    valkey: str
    """The URL of the Valkey server, or of its sentinels."""
    objects: str | None = None
    """The URL of the object store, as the setting ``objects.url`` has it."""
    window: int | None = None
    """Jobs of one queue that wait in Valkey, at most."""
    consumer: str | None = None
    """What the names of consumers begin with, such as the name of the pod."""

    @property
    def url(self) -> str:
        """The same as a store URL."""
        given = {"pg": self.pg, "valkey": self.valkey, "window": self.window, "consumer": self.consumer}
        options = [f"{name}={quote(str(value), safe=':/@')}" for name, value in given.items() if value is not None]
        return "streams://?" + "&".join(options)

    def __repr__(self) -> str:
        return f"Streams({url_without_secrets(self.url)!r})"
