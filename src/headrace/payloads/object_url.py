"""Where objects lie: ``s3://bucket/prefix``, ``gs://…``, ``az://container/…``, ``file:///directory`` or ``memory://``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.core.durations import micros
from headrace.errors import ConfigError
from headrace.text import shown

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_OPTIONS = {
    "s3": {
        "endpoint", "region", "access_key_id", "secret_access_key", "session_token", "virtual_hosted_style_request",
        "server_side_encryption", "sse_kms_key_id",
    },
    "gs": {"base_url", "service_account"},
    "az": {"endpoint", "account_name", "account_key", "sas_key"},
    "file": set[str](),
    "memory": set[str](),
}  # fmt: skip
"""Of obstore. What else a cloud's SDK reads from the environment, such as ``AWS_ACCESS_KEY_ID``, obstore reads too."""
_SECOND = 1_000_000
_CONNECT = 5.0


class Location(NamedTuple):
    """A folder for objects, and how to get there."""

    scheme: str
    bucket: str
    prefix: str
    """Without slashes at its ends; of a directory, its absolute path."""
    options: Mapping[str, str]
    timeout: float
    """In seconds: for one request, beside the time that its bytes take."""

    @property
    def where(self) -> str:
        """The URL without its options, which may be secret."""
        return f"{self.scheme}://{self.bucket}{'/' if self.bucket and self.prefix else ''}{self.prefix}"

    def __repr__(self) -> str:
        return f"Location({self.where!r})"

    def connect(self) -> ObjectStore:
        """Obstore's client. It makes no request yet."""
        try:
            from obstore import exceptions, store
        except ImportError as error:
            raise ConfigError(f"objects need obstore ({error}); install: pip install 'headrace[objects]'") from error
        if self.scheme == "memory":
            return store.MemoryStore()
        if self.scheme == "file":
            try:
                os.makedirs(self.prefix, mode=0o700, exist_ok=True)  # what is in it is for its owner alone
                return store.LocalStore(self.prefix, mkdir=True, automatic_cleanup=True)
            except (OSError, exceptions.BaseError) as error:
                told = str(error).partition("\n")[0]
                raise ConfigError(f"object store {self.where}: expected a directory, or room for one: {told}") from None
        kind: Any = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[self.scheme]
        try:
            return kind(  # type: ignore[no-any-return]
                self.bucket,
                prefix=self.prefix or None,
                config=dict(self.options),
                client_options=self._client_options(),
                retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=self.timeout)},
            )
        except (ValueError, exceptions.BaseError):
            # What it says may quote an option, which may be secret.
            names = ", ".join(sorted(self.options)) or "none"
            raise ConfigError(
                f"object store {self.where}: obstore cannot use this URL with its options ({names}); correct them"
            ) from None

    def _client_options(self) -> dict[str, Any]:
        connect = timedelta(seconds=min(_CONNECT, self.timeout))
        # The time-out of a whole request is ours, because it depends on the size.
        options: dict[str, Any] = {"connect_timeout": connect, "timeout": timedelta(hours=1)}
        endpoint = self.options.get("endpoint", self.options.get("base_url", ""))
        return options | {"allow_http": True} if endpoint.startswith("http://") else options


def parse(url: str) -> Location:
    """The location that a URL names.

    >>> parse("s3://jobs/prod?region=eu-central-1&secret_access_key=hunter2")
    Location('s3://jobs/prod')
    """
    try:
        parts = urlsplit(url)
        given = parse_qsl(parts.query.replace("+", "%2B"), keep_blank_values=True, strict_parsing=bool(parts.query))
    except (ValueError, TypeError, AttributeError):
        raise ConfigError("object store URL: it cannot be read; expected text like s3://bucket/prefix") from None
    options, scheme, path = dict(given), parts.scheme, unquote(parts.path)
    if scheme not in _OPTIONS or "://" not in url:
        known = ", ".join(f"{name}://" for name in _OPTIONS)
        raise ConfigError(f"object store URL: expected one of {known}, got {shown(scheme)}")
    where = f"object store URL {scheme}://…"
    if "@" in parts.netloc or ":" in parts.netloc:
        raise ConfigError(f"{where}: expected no login in it; give credentials by the environment, or as options")
    if parts.fragment or len(options) < len(given):
        raise ConfigError(f"{where}: a part of it would be lost: a fragment or a repeated option; percent-encode it")
    bucket = parts.netloc
    if scheme == "file":
        if bucket or not path.startswith("/"):
            raise ConfigError(f"{where}: expected file:///absolute/path")
        path = str(Path(path))
    elif scheme == "memory":
        if bucket or path:
            raise ConfigError(f"{where}: expected memory:// alone")
    elif not bucket:
        raise ConfigError(f"{where}: expected {scheme}://bucket/prefix, got no bucket")
    else:
        path = _prefix(path, where)
    timeout = micros(options.pop("timeout", "30s"), "timeout")
    if timeout == 0:
        raise ConfigError("timeout: expected more than 0 s")
    if unknown := sorted(options.keys() - _OPTIONS[scheme]):
        known = ", ".join(sorted(_OPTIONS[scheme] | {"timeout"}))
        raise ConfigError(f"{where}: unknown option {shown(unknown[0])}. Known here: {known}")
    return Location(scheme, bucket, path, options, timeout / _SECOND)


def _prefix(path: str, where: str) -> str:
    parts = path.strip("/").split("/")
    if parts != [""] and any(part in ("", ".", "..") or not part.isprintable() for part in parts):
        raise ConfigError(f"{where}: expected a prefix of names between single slashes, got {shown(path)}")
    return "/".join(parts)
