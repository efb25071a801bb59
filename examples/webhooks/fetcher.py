"""Send a request to a URL that somebody else chose, without reaching what only you can reach.

A name is resolved once, every address that comes of it is checked, and the connection goes to a checked address, so a
name that changes its address in between gains nothing. Redirects are checked like the first URL. Time and the size of
the answer are bounded. No proxy of the environment is used.

It needs nothing of Headrace: ``pip install 'httpcore2[asyncio]'``.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from socket import SOCK_STREAM
from urllib.parse import urljoin

import httpcore2

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a name and port, as text."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})

_SPECIAL_4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by customers of a provider; Alibaba's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's metadata, though the address is a public one
        "169.254.0.0/16",  # link-local; most clouds' metadata
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata
        "192.0.2.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_UNICAST_6 = IPv6Network("2000::/3")
"""All that is handed out of IPv6. Outside are loopback, link-local, private and multicast addresses, and IPv4 addresses
in another dress."""
_SPECIAL_6 = tuple(IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
"""Teredo and other protocols, documentation, 6to4, documentation."""
_NAT64 = IPv6Network("64:ff9b::/96")
"""How a network without IPv4 reaches IPv4: the last four bytes are the address."""

_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://"
    r"(?:\[(?P<literal>[0-9a-f.]*:[0-9a-f:.]+)\]|(?P<name>[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*)\.?)"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<target>[/?][\x21\x22\x24-\x5b\x5d-\x7e]*)?(?:#[\x21-\x5b\x5d-\x7e]*)?",
    re.IGNORECASE | re.ASCII,
)
"""Neither a user name, nor a backslash, a space or anything beyond ASCII: what programs read differently is refused."""
_LONGEST_URL = 8_192
_LONGEST_NAME = 253
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?")
_OURS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect"}
)
"""Headers about the connection, which is not the caller's."""
_FOR_ANYBODY = frozenset({"accept", "accept-encoding", "content-type", "user-agent", "webhook-id"})
"""Headers that follow a redirect to another host. Any other may be a secret, whatever its name."""
_PORTS = {"http": 80, "https": 443}
_MOST_ADDRESSES = 4
"""How many addresses of one name are tried."""


class Refused(Exception):
    """The request is not allowed, and trying again changes nothing."""


class NoAnswer(Exception):
    """The request was sent, or would have been, and no answer came. It may come the next time."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What may be fetched."""

    schemes: frozenset[str] = frozenset({"http", "https"})
    ports: frozenset[int] = frozenset({80, 443})
    allowed: Sequence[Network] = ()
    """Networks that are not public and yet may be reached."""
    refused: Sequence[Network] = ()
    """Public networks that may not: your own, for example."""
    redirects: int = 3
    timeout: float = 30.0
    """Seconds for everything together: names, connections, redirects, and the last byte of the answer."""
    max_answer: int = 64 * 1024
    """Bytes of an answer's body that are kept. The rest is not read."""

    def permits(self, address: Address) -> bool:
        """Whether a connection to this address is allowed."""
        if isinstance(address, IPv6Address) and address in _NAT64:
            address = IPv4Address(address.packed[-4:])
        if _within(address, self.refused):
            return False
        return is_public(address) or _within(address, self.allowed)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes
    """As it was sent: a compressed body stays so."""
    cut: bool
    """Whether the body was too long, too slow, or broke off. The status is what the server said all the same."""
    url: str
    """The URL that answered, after redirects."""
    address: str
    """The address that it was at."""


def is_public(address: Address) -> bool:
    """Whether the address is one of the public internet."""
    if isinstance(address, IPv4Address):
        return not _within(address, _SPECIAL_4)
    return address in _UNICAST_6 and not _within(address, _SPECIAL_6)


def _within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a name, as the system finds them."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=SOCK_STREAM)
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


@dataclass(frozen=True, slots=True)
class _Place:
    """A URL, taken apart."""

    url: str
    scheme: str
    host: str
    port: int
    target: str

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS.get(self.scheme) else f"{host}:{self.port}"

    @property
    def name(self) -> str:
        """The origin. Messages show no more: path and query may hold secrets."""
        return f"{self.scheme}://{self.host_header}"

    @property
    def literal(self) -> Address | None:
        """The address, if the host is one. ``127.1`` and ``0x7f000001`` are not: programs read them differently."""
        if ":" not in self.host and not _NUMBER.fullmatch(self.host.rpartition(".")[2]):
            return None
        try:
            return ip_address(self.host)
        except ValueError:
            raise Refused(f"expected an address like 192.0.2.1 or [2001:db8::1], got {self.host!r}") from None


def _place(url: str) -> _Place:
    parts = _URL.fullmatch(url) if len(url) <= _LONGEST_URL else None
    if parts is None or len(parts["name"] or "") > _LONGEST_NAME:
        raise Refused(f"expected a URL like https://host/path, in ASCII and without a user name, got {url[:200]!r}")
    scheme, target = parts["scheme"].lower(), parts["target"] or "/"
    host = (parts["literal"] or parts["name"]).lower()
    port = int(parts["port"]) if parts["port"] else _PORTS.get(scheme, 0)
    return _Place(url, scheme, host, port, target if target.startswith("/") else f"/{target}")


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    place: _Place
    headers: Mapping[str, str]
    body: bytes

    def all_headers(self) -> list[tuple[str, str]]:
        """What is sent, with the headers about the connection."""
        ours = {"host": self.place.host_header, "connection": "close"}
        if self.body or self.method not in ("GET", "HEAD"):
            ours["content-length"] = str(len(self.body))
        return [*ours.items(), *self.headers.items()]

    def moved(self, location: str) -> _Request:
        """The same request at the place that a redirect names. Another host gets no header that may be a secret."""
        try:
            there = _place(urljoin(self.place.url, location))
        except ValueError:
            raise Refused(f"{self.place.name} redirects to {location[:200]!r}, which is no URL") from None
        if self.place.scheme == "https" and there.scheme != "https":
            raise Refused(f"{self.place.name} redirects to a URL without TLS")
        same = there.name == self.place.name
        kept = {name: value for name, value in self.headers.items() if same or name in _FOR_ANYBODY}
        return replace(self, place=there, headers=kept)


class Fetcher:
    """Sends requests under rules. One serves any number of requests at once.

    ``resolver`` finds the addresses of names; ``tls`` says whose certificates are trusted.
    """

    def __init__(
        self, rules: Rules | None = None, *, resolver: Resolver = resolve, tls: ssl.SSLContext | None = None
    ) -> None:
        self._rules = rules or Rules()
        self._resolve = resolver
        self._tls = tls

    def check(self, url: str, method: str = "POST", headers: Mapping[str, str] | None = None) -> None:
        """Raise ``Refused`` if it is clear already, before names are resolved, that the request is not allowed."""
        self._request(url, method, headers or {}, b"")

    async def fetch(
        self,
        url: str,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float | None = None,
    ) -> Answer:
        """The answer to a request. Raises ``Refused`` or ``NoAnswer``.

        A redirect that keeps method and body is followed. One that would turn the request into a GET without a body is
        the answer itself: what was to be sent has not arrived.
        """
        seconds = self._rules.timeout if timeout is None else min(self._rules.timeout, timeout)
        deadline = asyncio.get_running_loop().time() + seconds
        request = self._request(url, method, headers or {}, body)
        try:
            for _ in range(self._rules.redirects + 1):
                answer = await self._exchange(request, deadline)
                if not _is_redirect(answer.status, answer.headers, method):
                    return answer
                request = self._allowed(request.moved(answer.headers["location"]))
        except TimeoutError:
            raise NoAnswer(f"{request.place.name}: no answer within {seconds:g} s") from None
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError) as error:
            raise NoAnswer(f"{request.place.name}: {str(error) or type(error).__name__}") from error
        raise Refused(f"{request.place.name}: more than {self._rules.redirects} redirects")

    def _request(self, url: str, method: str, headers: Mapping[str, str], body: bytes) -> _Request:
        if method not in METHODS:
            raise Refused(f"expected one of the methods {', '.join(sorted(METHODS))}, got {method!r}")
        sent = {"user-agent": "headrace-webhooks", "accept": "*/*", "accept-encoding": "identity"}
        for name, value in headers.items():
            plain = name.lower()
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                raise Refused(f"expected a header of ASCII on one line, got {name!r}")
            if plain in _OURS or plain.startswith("proxy-"):
                raise Refused(f"expected headers for the receiver, got {name!r}, which is about the connection")
            sent[plain] = value
        return self._allowed(_Request(method, _place(url), sent, body))

    def _allowed(self, request: _Request) -> _Request:
        """The request, if nothing that is known before the name is resolved speaks against it."""
        place = request.place
        if place.scheme not in self._rules.schemes:
            raise Refused(f"{place.name}: expected the scheme {' or '.join(sorted(self._rules.schemes))}")
        if place.port not in self._rules.ports:
            raise Refused(f"{place.name}: the port is not allowed")
        if place.literal is not None and not self._rules.permits(place.literal):
            raise Refused(f"{place.name}: the address is not allowed")
        return request

    async def _addresses(self, place: _Place) -> list[Address]:
        """Where to connect to. If one address of a name is not allowed, none is."""
        if place.literal is not None:
            return [place.literal]
        found = [ip_address(address) for address in await self._resolve(place.host, place.port)]
        if not found:
            raise OSError(f"{place.host} has no address")
        if not all(map(self._rules.permits, found)):
            # The address itself is not told: whoever chose the URL may see this, and would learn names of your network.
            raise Refused(f"{place.name}: the address is not allowed")
        return found[:_MOST_ADDRESSES]

    async def _exchange(self, request: _Request, deadline: float) -> Answer:
        """One request and its answer, on a connection of its own."""
        place = request.place
        async with asyncio.timeout_at(deadline):
            line = _Line(await self._addresses(place), deadline)
        url = httpcore2.URL(scheme=place.scheme, host=place.host, port=place.port, target=place.target)
        sent = httpcore2.Request(request.method, url, headers=request.all_headers(), content=request.body)
        if place.scheme == "https" and self._tls is None:
            self._tls = httpcore2.default_ssl_context()  # reads all certificates: once
        connection = httpcore2.AsyncHTTPConnection(url.origin, ssl_context=self._tls, network_backend=line)
        try:
            async with asyncio.timeout_at(deadline):
                response = await connection.handle_async_request(sent)
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            redirect = _is_redirect(response.status, headers, request.method)
            body, cut = (b"", False) if redirect else await self._body(response, deadline)
            return Answer(response.status, headers, body, cut, place.url, line.address)
        finally:
            await connection.aclose()
            await line.close()

    async def _body(self, response: httpcore2.Response, deadline: float) -> tuple[bytes, bool]:
        """As much of the body as fits, and whether there was more."""
        body = bytearray()
        try:
            async with asyncio.timeout_at(deadline), aclosing(response.aiter_stream()) as pieces:
                async for piece in pieces:
                    body += piece
                    if len(body) > self._rules.max_answer:
                        break
                else:
                    return bytes(body), False
        except (TimeoutError, httpcore2.NetworkError, httpcore2.ProtocolError):
            pass
        return bytes(body[: self._rules.max_answer]), True


class _Line(httpcore2.AsyncNetworkBackend):
    """Connects to addresses that were checked, whatever the name in the URL is. Name, SNI and certificate stay those of
    the URL."""

    def __init__(self, addresses: Sequence[Address], deadline: float) -> None:
        self._addresses = addresses
        self._deadline = deadline
        self._network = httpcore2.AnyIOBackend()
        self._stream: httpcore2.AsyncNetworkStream | None = None
        self.address = ""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """A connection to the first address that takes one. Each gets its share of the time that is left."""
        for tried, address in enumerate(self._addresses):
            left = self._deadline - asyncio.get_running_loop().time()
            self.address = str(address)
            try:
                share = left / (len(self._addresses) - tried)
                self._stream = await self._network.connect_tcp(self.address, port, share)
                return self._stream
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
        raise failed

    async def close(self) -> None:
        """Close the socket, even if a TLS handshake was given up half-way."""
        if self._stream is not None:
            await self._stream.aclose()


def _is_redirect(status: int, headers: Mapping[str, str], method: str) -> bool:
    """Whether the same request is to be sent again elsewhere."""
    follow = (301, 302, 303, 307, 308) if method in ("GET", "HEAD") else (307, 308)
    return status in follow and "location" in headers
