"""The options of a URL: which of them each scheme knows, and what to write instead of others."""

from __future__ import annotations

from headrace.text import shown

_ALWAYS = ("prefix", "listen")
_TLS = ("ca", "cert", "key", "verify")
_SENTINEL = ("master", "sentinel_user", "sentinel_password")
_MEANS_TLS = (*_TLS, "ssl", "tls")
_SECURE = {"rediss": "redis", "valkeys": "valkey"}
_LOGIN = ("user", "username", "password")


def unknown(scheme: str, name: str, value: str) -> str:
    """What to say about an option that URLs with this scheme do not have.

    >>> unknown("redis", "db", "3")
    "unknown option 'db': write its number after the host, like redis://host/3. Known here: listen, plaintext, prefix"
    """
    advice = _advice(scheme, name, value)
    return f"unknown option {shown(name)}{advice and f': {advice}'}. Known here: {', '.join(sorted(_known(scheme)))}"


def _known(scheme: str) -> tuple[str, ...]:
    family, _, kind = scheme.partition("+")
    secure = family in _SECURE
    own = {"sentinel": _SENTINEL, "cluster": ("shards",), "unix": ("database",)}.get(kind, ())
    return (*_ALWAYS, *own, *(_TLS if secure else () if kind == "unix" else ("plaintext",)))


def _advice(scheme: str, name: str, value: str) -> str:
    given, plus, kind = scheme.partition("+")
    family = _SECURE.get(given, given)
    if name in _MEANS_TLS and kind == "unix":
        return "a socket of the file system has no TLS"
    if name in _MEANS_TLS and given in _SECURE:
        return f"{scheme}:// is TLS already: leave it out"
    if name in _MEANS_TLS:
        return f"for TLS the URL begins with {family}s{plus}{kind}://"
    if name in ("db", "database"):
        number = value if value.isascii() and value.isdigit() else "0"
        return {"unix": f"write database={number}", "cluster": "a cluster has only database 0"}.get(
            kind, f"write its number after the host, like {scheme}://host/{number}"
        )
    if name in _LOGIN:
        return f"write it before the host, like {scheme}://user:password@host"
    if name in _SENTINEL:
        return f"it belongs to {family}+sentinel://"
    if name == "shards":
        return f"it belongs to {family}+cluster://"
    return ""
