"""The address of a store: what its URL says."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from headrace.backends.loopback import is_loopback
from headrace.backends.redis.translate import LOGIN
from headrace.errors import ConfigError
from headrace.text import shown

_AT_SENTINELS = (
    "Give sentinel_password in the URL, and sentinel_user if it is not the default: sentinels have their own login"
)
_PORT = {"one": 6379, "cluster": 6379, "sentinel": 26379}


class Mode(Enum):
    """How several servers work together."""

    ONE = "one"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


class Address(NamedTuple):
    """One server."""

    host: str
    port: int
    path: str | None = None

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


class Tls(NamedTuple):
    """How connections are encrypted."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: bool = True


@dataclass(frozen=True)
class Endpoint:
    """One or several servers, and how to log in."""

    where: str
    """How messages name it: without secrets."""
    addresses: tuple[Address, ...] = (Address("localhost", 6379),)
    mode: Mode = Mode.ONE
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    database: int = 0
    master: str = ""
    """The name of the primary at the sentinels."""
    watcher: tuple[str | None, str] | None = field(default=None, repr=False)
    """User and password at the sentinels, if they want any."""
    tls: Tls | None = None
    plaintext: bool = False
    """Whether other machines may be reached without TLS."""
    login: str = LOGIN
    """What to do if the login is refused."""
    secret: str = "the password"
    """What messages call the password."""

    def sentinel(self, address: Address) -> Endpoint:
        """The same with the login at the sentinels."""
        user, password = self.watcher or (None, None)
        where = f"{self.where}: the sentinel {address}"
        return replace(
            self, where=where, user=user, password=password, database=0, login=_AT_SENTINELS, secret="sentinel_password"
        )

    def in_clear(self, address: Address) -> bool:
        """Whether others can listen in on the way there."""
        return self.tls is None and address.path is None and not is_loopback(address.host)

    @property
    def twin(self) -> str:
        """The scheme that would turn TLS on; or off, if it is on."""
        family = "valkey" if self.where.startswith("valkey") else "redis"
        kind = "" if self.mode is Mode.ONE else f"+{self.mode.value}"
        return f"{family}{'' if self.tls else 's'}{kind}://"

    @cached_property
    def tls_context(self) -> ssl.SSLContext | None:
        """The settings of TLS connections; the files are read once."""
        if self.tls is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls.ca)
            if self.tls.cert is not None:
                _check_key(self.tls, self.where)
                context.load_cert_chain(self.tls.cert, self.tls.key)
        except (OSError, ssl.SSLError) as error:
            given = ", ".join(str(path) for path in self.tls[:3] if path is not None)
            raise ConfigError(
                f"{self.where}: expected readable PEM files in ca, cert and key ({given}): {error}"
            ) from None
        if not self.tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _check_key(tls: Tls, where: str) -> None:
    if tls.cert is not None and tls.key is None:
        text = Path(tls.cert).read_bytes()
        if b"CERTIFICATE-----" in text and b"PRIVATE KEY-----" not in text:
            raise ConfigError(
                f"{where}: cert: expected its private key in the same file, or key=PATH beside it; {tls.cert} has none"
            )


def parse(url: str, options: dict[str, str], where: str) -> Endpoint:
    """Read a URL; takes the ``options`` that it knows out of the dict.

    >>> parse("redis+cluster://a:7000,b:7000", {}, "there").addresses
    (Address(host='a', port=7000, path=None), Address(host='b', port=7000, path=None))
    """
    scheme, _, rest = url.partition("://")
    family, _, kind = scheme.partition("+")
    secure = family in ("rediss", "valkeys")
    login, at, servers = rest.partition("?")[0].rpartition("@")
    user, colon, password = login.partition(":")
    if at and not (colon and password):
        raise ConfigError(f"{where}: expected user:password@ or :password@ before the host, got no password")
    hosts, _, path = servers.partition("/")
    if kind == "unix":
        if secure or hosts or not path:
            raise ConfigError(f"expected {family}+unix:///path/of/the/socket, got {where}")
        return Endpoint(
            where, (Address("", 0, "/" + unquote(path)),), Mode.ONE, _text(user, where),
            _text(password, where) if at else None,
            _database(options.pop("database", ""), where),
        )  # fmt: skip
    mode = Mode(kind) if kind else Mode.ONE
    if "," in hosts and "" in hosts.split(","):
        raise ConfigError(f"{where}: expected host:port between the commas, got {shown(hosts)}")
    addresses = tuple(_address(host, _PORT[mode.value], where) for host in hosts.split(","))
    if mode is Mode.ONE and len(addresses) > 1:
        raise ConfigError(
            f"{where}: several servers are a cluster ({family}+cluster://…) or sentinels ({family}+sentinel://…)"
        )
    database = _database(path, where)
    if mode is Mode.CLUSTER and database:
        raise ConfigError(f"{where}: a cluster has only database 0, got {database}")
    master = options.pop("master", "") if mode is Mode.SENTINEL else ""
    if mode is Mode.SENTINEL and not master:
        raise ConfigError(f"{where}: expected the name of the primary that the sentinels watch: add ?master=NAME")
    watcher = None
    if mode is Mode.SENTINEL:
        name, secret = options.pop("sentinel_user", None), options.pop("sentinel_password", "")
        if name is not None and not secret:
            raise ConfigError(f"{where}: sentinel_user: expected sentinel_password too")
        watcher = (name, secret) if secret else None
    return Endpoint(
        where, addresses, mode, _text(user, where), _text(password, where) if at else None, database, master, watcher,
        _tls(options, where) if secure else None, not secure and _switch(options, "plaintext", "no", where),
    )  # fmt: skip


def _switch(options: dict[str, str], name: str, default: str, where: str) -> bool:
    given = options.pop(name, default)
    if given not in ("yes", "no"):
        raise ConfigError(f"{where}: {name}: expected yes or no, got {shown(given)}")
    return given == "yes"


def _text(encoded: str, where: str) -> str | None:
    try:
        return unquote(encoded, errors="strict") or None
    except UnicodeDecodeError:
        raise ConfigError(
            f"{where}: expected percent-encoded UTF-8 in the user and the password, got other bytes"
        ) from None


def _address(text: str, port: int, where: str) -> Address:
    try:
        parts = urlsplit(f"//{text}")
        found = port if parts.port is None else parts.port
        if found and (parts.hostname or not text):
            return Address(parts.hostname or "localhost", found)
    except ValueError:
        pass
    raise ConfigError(f"{where}: expected host:port with a port from 1 to 65535, got {shown(text)}")


def _database(text: str, where: str) -> int:
    if not text:
        return 0
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"{where}: expected the number of a database after the host, like /0, got {shown(text)}")
    return int(text)


def _tls(options: dict[str, str], where: str) -> Tls:
    verify = _switch(options, "verify", "yes", where)
    tls = Tls(options.pop("ca", None), options.pop("cert", None), options.pop("key", None), verify)
    if tls.key is not None and tls.cert is None:
        raise ConfigError(f"{where}: key: expected its certificate in cert")
    return tls
