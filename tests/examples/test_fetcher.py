"""The fetcher of the webhook example: what it refuses to reach, and how it bears servers that mean ill.

Everything happens on the loopback interface, which it refuses unless it is told otherwise.
"""

from __future__ import annotations

import asyncio
import gzip
import ssl
from asyncio import StreamWriter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from fetcher import Fetcher, NoAnswer, Refused, Rules, is_public, resolve
from hypothesis import given
from hypothesis.strategies import ip_addresses
from receiver import Receiver, Respond, Seen, response

HERE = [ip_network("127.0.0.0/8")]
PATIENCE = 60.0
SECRETS = {"Authorization": "Bearer s3cret", "Cookie": "a=b", "X-Api-Key": "s3cret", "Webhook-Id": "7"}


def says(status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> Respond:
    async def respond(seen: Seen, writer: StreamWriter) -> None:
        writer.write(response(status, headers, body))

    return respond


def names(**known: Sequence[str]) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """A resolver that knows these names of ``.test``, and nothing else."""

    async def resolver(host: str, port: int) -> Sequence[str]:
        try:
            return known[host.removesuffix(".test")]
        except KeyError:
            raise OSError(f"no such name: {host}") from None

    return resolver


def fetcher_for(*receivers: Receiver, rules: Rules | None = None, **known: Sequence[str]) -> Fetcher:
    """A fetcher that may reach these servers."""
    ports = frozenset(receiver.port for receiver in receivers)
    there = rules or Rules()
    rules = Rules(there.schemes, ports, HERE, there.refused, there.redirects, there.timeout, there.max_answer)
    return Fetcher(rules, resolver=names(**known))


def let_time_pass(seconds: float) -> None:
    """Move the clock of the event loop on."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]


# Addresses


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.254",
        "168.63.129.16",
        "169.254.169.254",
        "169.254.170.2",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "224.0.1.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::a00:1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:8.8.8.8",
        "::ffff:0:127.0.0.1",
        "64:ff9b:1::a00:1",
        "100::1",
        "2001::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "2002:c0a8:101::1",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
        "ff0e::1",
    ],
)
def test_an_address_that_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))
    assert not Rules().permits(ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "172.32.0.0",
        "223.255.255.255",
        "2606:4700::1111",
        "2001:4860:4860::8888",
        "2a00:1450::1",
    ],
)
def test_an_address_that_is_public(address: str) -> None:
    assert is_public(ip_address(address))
    assert Rules().permits(ip_address(address))


@pytest.mark.parametrize("inside", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "168.63.129.16", "224.0.0.1"])
def test_nat64_is_what_is_inside(inside: str) -> None:
    assert not Rules().permits(ip_address(f"64:ff9b::{inside}"))
    assert Rules().permits(ip_address("64:ff9b::8.8.8.8"))


@given(ip_addresses())
def test_what_is_public_is_so_in_the_eyes_of_python(address: IPv4Address | IPv6Address) -> None:
    assert not is_public(address) or (address.is_global and not address.is_multicast)


def test_networks_can_be_allowed_and_public_ones_refused() -> None:
    rules = Rules(allowed=[ip_network("10.0.0.0/24")], refused=[ip_network("8.8.8.0/24"), ip_network("10.0.0.9/32")])
    tried = ["10.0.0.1", "10.0.1.1", "8.8.8.8", "64:ff9b::8.8.8.8", "8.8.4.4", "10.0.0.9", "::ffff:10.0.0.1"]
    assert [rules.permits(ip_address(one)) for one in tried] == [True, False, False, False, True, False, False]


# URLs


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "[::1]",
        "[::]",
        "0.0.0.0",
        "169.254.169.254",
        "[fd00:ec2::254]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "10.0.0.1.",
    ],
)
def test_an_address_in_the_url_is_refused_before_it_is_stored(host: str) -> None:
    with pytest.raises(Refused, match="the address is not allowed"):
        Fetcher().check(f"http://{host}/")


@pytest.mark.parametrize(
    "host",
    [
        "127.1",
        "0x7f.1",
        "0x7f000001",
        "2130706433",
        "017700000001",
        "0177.0.0.1",
        "127.0.0.01",
        "0",
        "0x",
        "1.2.3",
        "1.2.3.4.5",
        "256.1.1.1",
        "134744072",
        "a.0x08",
        "foo.1",
    ],
)
async def test_odd_spellings_of_addresses_are_refused(host: str) -> None:
    asked: list[str] = []

    async def resolver(name: str, port: int) -> list[str]:
        asked.append(name)
        return ["127.0.0.1"]

    with pytest.raises(Refused, match=r"expected an address like 192\.0\.2\.1"):
        await Fetcher(Rules(allowed=HERE), resolver=resolver).fetch(f"http://{host}/")
    assert asked == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.test",
        "//hooks.test/",
        "http:/hooks.test/",
        "http:///",
        "http://",
        "http://hooks.test:http/",
        "http://user@hooks.test/",
        "http://user:password@hooks.test/",
        "http://hooks.test\\@127.0.0.1/",
        "http://hooks.test:80@127.0.0.1/",
        "http://[::1].hooks.test/",
        "http://[fe80::1%25eth0]/",
        "http://[8.8.8.8]/",
        "http://[hooks]/",
        "http://hooks..test/",
        "http://.test/",
        "http://%31%32%37.0.0.1/",
        "http://hooks.test:999999/",
        "http://a:/",
        "http://①②⑦.⓪.⓪.①/",
        "http://127。0。0。1/",
        "http://hooks.test/ü",
        "http://hooks.test/a b",
        " http://hooks.test/",
        "http://hooks.test/\r\nHost: x",
        "http://ho\toks.test/",
        "http://hooks.test/\0",
        "http://hooks.test\n",
        pytest.param("http://" + "a." * 126 + "aa/", id="a long name"),
        pytest.param("http://" + "a" * 64 + ".test/", id="a long label"),
        pytest.param("http://hooks.test/" + "a" * 9_000, id="a long path"),
    ],
)
def test_a_url_that_programs_may_read_differently_is_refused(url: str) -> None:
    with pytest.raises(Refused, match="expected a URL like https://host/path"):
        Fetcher().check(url)


@pytest.mark.parametrize("scheme", ["file", "ftp", "gopher", "dict", "ldap", "unix", "ws", "data"])
def test_only_http(scheme: str) -> None:
    with pytest.raises(Refused, match="expected the scheme http or https"):
        Fetcher().check(f"{scheme}://hooks.test/etc/passwd")
    with pytest.raises(Refused, match="expected the scheme https"):
        Fetcher(Rules(schemes=frozenset({"https"}))).check("http://hooks.test/")


@pytest.mark.parametrize("port", [0, 22, 25, 81, 2375, 5432, 6379, 8080, 65535])
def test_only_the_ports_of_the_web(port: int) -> None:
    with pytest.raises(Refused, match=f":{port}: the port is not allowed"):
        Fetcher().check(f"https://hooks.test:{port}/")


def test_what_is_fine() -> None:
    for url in (
        "http://hooks.test",
        "HTTPS://Hooks.Test:443/a/b?c=d&e=%20#f",
        "https://xn--bcher-kva.test./",
        "http://a?b",
    ):
        Fetcher().check(url, "PUT", {"Content-Type": "text/plain; charset=utf-8", "X-Empty": ""})


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "OPTIONS", "post", "POST /x HTTP/1.1\r\na: b\r\n\r\nGET", ""])
def test_only_some_methods(method: str) -> None:
    with pytest.raises(Refused, match="expected one of the methods DELETE, GET, HEAD, PATCH, POST, PUT"):
        Fetcher().check("https://hooks.test/", method)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a", "b\r\nc: d"),
        ("a", "b\nc"),
        ("a", "b\0"),
        ("a", " b"),
        ("a", "b "),
        ("a", "ü"),
        ("a b", "c"),
        ("a:", "b"),
        ("", "b"),
        ("ü", "b"),
        ("a\r\nb", "c"),
    ],
)
def test_headers_are_on_one_line(name: str, value: str) -> None:
    with pytest.raises(Refused, match="expected a header of ASCII on one line"):
        Fetcher().check("https://hooks.test/", headers={name: value})


@pytest.mark.parametrize(
    "name",
    ["Host", "Content-Length", "transfer-encoding", "CONNECTION", "Upgrade", "TE", "Proxy-Authorization"],
)
def test_headers_about_the_connection_are_refused(name: str) -> None:
    with pytest.raises(Refused, match="which is about the connection"):
        Fetcher().check("https://hooks.test/", headers={name: "x"})


def test_messages_show_no_secret_of_a_url() -> None:
    with pytest.raises(Refused) as told:
        Fetcher().check("https://10.0.0.1/s3cret?s3cret")
    assert str(told.value) == "https://10.0.0.1: the address is not allowed"


# Names


async def test_loopback_is_refused_unless_it_is_allowed() -> None:
    async with Receiver(says(200)) as receiver:
        url = f"http://hooks.test:{receiver.port}/"
        careful = Fetcher(Rules(ports=frozenset({receiver.port})), resolver=names(hooks=["127.0.0.1"]))
        with pytest.raises(Refused, match=r"http://hooks\.test:\d+: the address is not allowed"):
            await careful.fetch(url)
        with pytest.raises(Refused, match="the address is not allowed"):
            await careful.fetch(f"http://127.0.0.1:{receiver.port}/")
        assert receiver.connections == 0
        assert (await fetcher_for(receiver, hooks=["127.0.0.1"]).fetch(url)).status == 200


async def test_the_system_resolves_names_unless_somebody_else_does() -> None:
    assert await resolve("localhost", 80)
    with pytest.raises(Refused, match="http://localhost: the address is not allowed"):
        await Fetcher().fetch("http://localhost/")


async def test_a_name_with_one_bad_address_is_refused() -> None:
    async with Receiver(says(200)) as receiver:
        for bad in ("10.0.0.1", "::1", "::ffff:127.0.0.1", "64:ff9b::10.0.0.1", "169.254.169.254", "fe80::1%2"):
            with pytest.raises(Refused) as told:
                await fetcher_for(receiver, hooks=["127.0.0.1", bad]).fetch(f"http://hooks.test:{receiver.port}/")
            assert bad not in str(told.value)  # nobody learns addresses of your network
        assert receiver.connections == 0


async def test_a_name_is_resolved_once() -> None:
    """One that changes its address after the check leads nowhere else."""
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    async with (
        Receiver(says(200)) as first,
        Receiver(says(200), host="127.0.0.2", port=first.port) as second,
    ):
        fetcher = Fetcher(Rules(ports=frozenset({first.port}), allowed=HERE), resolver=rebinding)
        answer = await fetcher.fetch(f"http://hooks.test:{first.port}/")
        assert (answer.status, answer.address, asked) == (200, "127.0.0.1", ["hooks.test"])
        assert (first.connections, second.connections) == (1, 0)
        assert first.seen[0].headers["host"] == f"hooks.test:{first.port}"


async def test_the_next_address_is_tried_if_one_does_not_answer() -> None:
    async with Receiver(says(204)) as receiver:
        answer = await fetcher_for(receiver, hooks=["127.0.0.2", "127.0.0.1"]).fetch(
            f"http://hooks.test:{receiver.port}/"
        )
        assert (answer.status, answer.address) == (204, "127.0.0.1")


async def test_a_name_that_leads_nowhere() -> None:
    async with Receiver(says(200)) as receiver:
        fetcher = fetcher_for(receiver, empty=[], gone=["127.0.0.2"])
        for host, why in (("none", "no such name"), ("empty", "has no address"), ("gone", "connect")):
            with pytest.raises(NoAnswer, match=why):
                await fetcher.fetch(f"http://{host}.test:{receiver.port}/")


async def test_names_are_resolved_in_time() -> None:
    async def never(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    async with asyncio.timeout(PATIENCE):
        with pytest.raises(NoAnswer, match=r"no answer within 0\.05 s"):
            await Fetcher(resolver=never).fetch("https://hooks.test/", timeout=0.05)


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Receiver(says(200)) as receiver, Receiver(says(200)) as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert (await fetcher_for(receiver).fetch(f"http://127.0.0.1:{receiver.port}/")).status == 200
        assert (receiver.connections, proxy.connections) == (1, 0)


# Requests and answers


async def test_what_is_sent_and_what_comes_back() -> None:
    async with Receiver(says(201, {"X-Note": "thanks"}, b"made")) as receiver:
        url = f"http://hooks.test:{receiver.port}/a?b=c#d"
        answer = await fetcher_for(receiver, hooks=["127.0.0.1"]).fetch(url, "PUT", {"X-One": "1"}, b"\0body")
        assert (answer.status, answer.headers["x-note"], answer.body, answer.cut) == (201, "thanks", b"made", False)
        [seen] = receiver.seen
        assert (seen.method, seen.target, seen.body) == ("PUT", "/a?b=c", b"\0body")
        assert seen.headers == {
            "host": f"hooks.test:{receiver.port}",
            "connection": "close",
            "content-length": "5",
            "user-agent": "headrace-webhooks",
            "accept": "*/*",
            "accept-encoding": "identity",
            "x-one": "1",
        }


async def test_a_body_of_megabytes() -> None:
    async with Receiver(says(200)) as receiver:
        body = bytes(range(256)) * 16_384
        await fetcher_for(receiver).fetch(f"http://127.0.0.1:{receiver.port}/", body=body)
        assert receiver.seen[0].body == body


async def test_a_long_answer_is_cut_while_it_comes() -> None:
    sent = 0

    async def endless(seen: Seen, writer: StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            sent += 65_536
            await writer.drain()

    async with asyncio.timeout(PATIENCE), Receiver(endless) as receiver:
        answer = await fetcher_for(receiver, rules=Rules(max_answer=1_000)).fetch(f"http://127.0.0.1:{receiver.port}/")
    assert (answer.status, answer.body, answer.cut) == (200, b"x" * 1_000, True)
    assert sent < 64 * 1024 * 1024  # what fits into the buffers between the two


async def test_an_answer_of_exactly_the_cap_is_whole() -> None:
    async with Receiver(says(200, body=b"12345")) as receiver:
        url = f"http://127.0.0.1:{receiver.port}/"
        whole = await fetcher_for(receiver, rules=Rules(max_answer=5)).fetch(url)
        cut = await fetcher_for(receiver, rules=Rules(max_answer=4)).fetch(url)
        assert (whole.body, whole.cut, cut.body, cut.cut) == (b"12345", False, b"1234", True)


async def test_a_compressed_answer_does_not_grow() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    async with Receiver(says(200, {"content-encoding": "gzip"}, bomb)) as receiver:
        answer = await fetcher_for(receiver).fetch(f"http://127.0.0.1:{receiver.port}/")
        assert answer.body == bomb[: 64 * 1024]


@pytest.mark.parametrize(
    "start", [b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nx-a: b\r\n", b"HTTP/1.1 103 Early Hints\r\n\r\n"]
)
async def test_an_answer_that_drips_is_given_up_in_time(start: bytes) -> None:
    async def drip(seen: Seen, writer: StreamWriter) -> None:
        writer.write(start)
        while True:
            await asyncio.sleep(0.02)
            writer.write(start if start.endswith(b"\r\n\r\n") else b"x" if start else b"")
            await writer.drain()

    async with asyncio.timeout(PATIENCE), Receiver(drip) as receiver:
        with pytest.raises(NoAnswer, match=r"no answer within 0\.3 s"):
            await fetcher_for(receiver).fetch(f"http://127.0.0.1:{receiver.port}/", timeout=0.3)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_drips_is_cut_in_time(chunked: bool) -> None:
    """The status has come, and it counts."""

    async def drip(seen: Seen, writer: StreamWriter) -> None:
        writer.write(b"HTTP/1.1 202 OK\r\n" + (b"transfer-encoding: chunked\r\n\r\n" if chunked else b"\r\n"))
        while True:
            writer.write(b"1\r\nx\r\n" if chunked else b"x")
            await writer.drain()
            await asyncio.sleep(0.02)
            let_time_pass(1)

    async with Receiver(drip) as receiver:
        answer = await fetcher_for(receiver).fetch(f"http://127.0.0.1:{receiver.port}/")
    assert (answer.status, answer.cut) == (202, True)
    assert set(answer.body) <= set(b"x")


async def test_the_rules_bound_the_time_that_a_request_asks_for() -> None:
    async def silent(seen: Seen, writer: StreamWriter) -> None:
        await asyncio.sleep(PATIENCE)

    async with asyncio.timeout(PATIENCE), Receiver(silent) as receiver:
        fetcher = fetcher_for(receiver, rules=Rules(timeout=0.1))
        with pytest.raises(NoAnswer, match=r"no answer within 0\.1 s"):
            await fetcher.fetch(f"http://127.0.0.1:{receiver.port}/", timeout=1e9)


async def test_a_server_that_reads_nothing() -> None:
    class Stubborn(Receiver):
        async def serve(self, reader: asyncio.StreamReader, writer: StreamWriter) -> None:
            await asyncio.sleep(PATIENCE)

    async with asyncio.timeout(PATIENCE), Stubborn(says(200)) as receiver:
        url = f"http://127.0.0.1:{receiver.port}/"
        with pytest.raises(NoAnswer, match="no answer within"):
            await fetcher_for(receiver).fetch(url, body=bytes(50_000_000), timeout=0.5)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 abc x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 1_000_000,
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 200_000,
    ],
    ids=["nothing", "ssh", "no status", "no header", "an endless header", "endless headers"],
)
async def test_what_is_no_http_is_no_answer(sent: bytes) -> None:
    async def respond(seen: Seen, writer: StreamWriter) -> None:
        writer.write(sent)

    async with asyncio.timeout(PATIENCE), Receiver(respond) as receiver:
        with pytest.raises(NoAnswer):
            await fetcher_for(receiver).fetch(f"http://127.0.0.1:{receiver.port}/")


async def test_a_body_that_breaks_off_is_cut() -> None:
    async def respond(seen: Seen, writer: StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc")

    async with Receiver(respond) as receiver:
        answer = await fetcher_for(receiver).fetch(f"http://127.0.0.1:{receiver.port}/")
        assert (answer.status, answer.body, answer.cut) == (200, b"abc", True)


# Redirects


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("http://169.254.169.254/latest/meta-data/", "the address is not allowed|the port is not allowed"),
        ("http://127.1/", "expected an address like|the port is not allowed"),
        ("http://inside.test:{port}/", "the address is not allowed"),
        ("//10.0.0.1:{port}/", "the address is not allowed"),
        ("http://[::1]:{port}/", "the address is not allowed"),
        ("http://hooks.test:22/", ":22: the port is not allowed"),
        ("file:///etc/passwd", "expected a URL like"),
        ("gopher://hooks.test/", "expected the scheme"),
        ("http://user:password@hooks.test:{port}/", "expected a URL like"),
        ("http://[", "which is no URL"),
        ("/\\evil", "expected a URL like"),
    ],
)
@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_is_checked_like_a_url(status: int, location: str, why: str) -> None:
    target = ""

    async def respond(seen: Seen, writer: StreamWriter) -> None:
        writer.write(response(status, {"location": target}))

    async with Receiver(respond) as receiver:
        target = location.format(port=receiver.port)
        fetcher = fetcher_for(receiver, hooks=["127.0.0.1"], inside=["10.0.0.1"])
        with pytest.raises(Refused, match=why):
            await fetcher.fetch(f"http://hooks.test:{receiver.port}/")
        assert receiver.connections == 1


async def test_redirects_keep_method_body_and_secrets_on_the_same_host() -> None:
    async def respond(seen: Seen, writer: StreamWriter) -> None:
        writer.write(response(200) if seen.target == "/b/d" else response(308, {"location": "d"}))

    async with Receiver(respond) as receiver:
        url = f"http://127.0.0.1:{receiver.port}/b/c?x=y"
        answer = await fetcher_for(receiver).fetch(url, headers=SECRETS, body=b"all of it")
        assert answer.url == f"http://127.0.0.1:{receiver.port}/b/d"
        for seen in receiver.seen:
            assert (seen.method, seen.body, seen.headers["authorization"]) == ("POST", b"all of it", "Bearer s3cret")


@pytest.mark.parametrize("other", ["hooks.test", "127.0.0.1"])
async def test_redirects_take_no_secret_to_another_host(other: str) -> None:
    """Another name or another port is another host, and what was dropped does not come back."""
    async with Receiver(says(200)) as last:

        async def back(seen: Seen, writer: StreamWriter) -> None:
            writer.write(response(307, {"location": f"http://127.0.0.1:{last.port}/"}))

        async with Receiver(back) as first:

            async def away(seen: Seen, writer: StreamWriter) -> None:
                writer.write(response(307, {"location": f"http://{other}:{first.port}/"}))

            async with Receiver(away) as start:
                fetcher = fetcher_for(start, first, last, hooks=["127.0.0.1"])
                await fetcher.fetch(f"http://127.0.0.1:{start.port}/", headers=SECRETS, body=b"all of it")
                assert start.seen[0].headers["x-api-key"] == "s3cret"
                for seen in first.seen + last.seen:
                    assert (seen.body, seen.headers["webhook-id"]) == (b"all of it", "7")
                    assert not {"authorization", "cookie", "x-api-key"} & seen.headers.keys()


async def test_redirects_end() -> None:
    async with Receiver(says(307, {"location": "/again"})) as receiver:
        url = f"http://127.0.0.1:{receiver.port}/"
        with pytest.raises(Refused, match="more than 3 redirects"):
            await fetcher_for(receiver).fetch(url)
        assert receiver.connections == 4
        with pytest.raises(Refused, match="more than 0 redirects"):
            await fetcher_for(receiver, rules=Rules(redirects=0)).fetch(url)
        assert receiver.connections == 5


async def test_the_time_is_for_all_redirects_together() -> None:
    async def slow(seen: Seen, writer: StreamWriter) -> None:
        await asyncio.sleep(0.2)
        writer.write(response(307, {"location": "/again"}))

    async with asyncio.timeout(PATIENCE), Receiver(slow) as receiver:
        fetcher = fetcher_for(receiver, rules=Rules(redirects=1_000))
        with pytest.raises(NoAnswer, match="no answer within 1 s"):
            await fetcher.fetch(f"http://127.0.0.1:{receiver.port}/", timeout=1)
        assert receiver.connections <= 6


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_redirect_that_would_drop_the_body_is_the_answer(status: int) -> None:
    async def respond(seen: Seen, writer: StreamWriter) -> None:
        writer.write(response(200) if seen.target == "/new" else response(status, {"location": "/new"}))

    async with Receiver(respond) as receiver:
        url = f"http://127.0.0.1:{receiver.port}/"
        assert (await fetcher_for(receiver).fetch(url, body=b"x")).status == status
        assert (await fetcher_for(receiver).fetch(url, "GET")).status == 200
        assert "content-length" not in receiver.seen[-1].headers


async def test_a_redirect_without_a_place_is_the_answer() -> None:
    async with Receiver(says(308)) as receiver:
        assert (await fetcher_for(receiver).fetch(f"http://127.0.0.1:{receiver.port}/")).status == 308


# TLS


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """For a server of this name, and for a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "server.pem"
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(key.private_bytes(*plain) + made.public_bytes(serialization.Encoding.PEM))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return server, ssl.create_default_context(cafile=str(file))


async def test_name_and_certificate_are_those_of_the_url(tmp_path: Path) -> None:
    server, client = certificate(tmp_path, "hooks.test")
    asked: list[str | None] = []
    server.sni_callback = lambda _socket, name, _context: asked.append(name)
    async with Receiver(says(200), tls=server) as receiver:
        rules = Rules(ports=frozenset({receiver.port}), allowed=HERE)
        fetcher = Fetcher(rules, resolver=names(hooks=["127.0.0.1"], other=["127.0.0.1"]), tls=client)
        answer = await fetcher.fetch(f"https://Hooks.test.:{receiver.port}/")
        assert (answer.status, asked) == (200, ["hooks.test"])
        assert receiver.seen[0].headers["host"] == f"hooks.test:{receiver.port}"
        for wrong in ("other.test", "127.0.0.1"):
            with pytest.raises(NoAnswer, match="certificate verify failed"):
                await fetcher.fetch(f"https://{wrong}:{receiver.port}/")
        with pytest.raises(NoAnswer, match="certificate verify failed"):
            await Fetcher(rules, resolver=names(hooks=["127.0.0.1"])).fetch(f"https://hooks.test:{receiver.port}/")
        assert len(receiver.seen) == 1


async def test_a_redirect_without_tls_is_refused(tmp_path: Path) -> None:
    server, client = certificate(tmp_path, "hooks.test")
    async with Receiver(says(200)) as plain:
        async with Receiver(says(308, {"location": f"http://hooks.test:{plain.port}/"}), tls=server) as receiver:
            rules = Rules(ports=frozenset({plain.port, receiver.port}), allowed=HERE)
            fetcher = Fetcher(rules, resolver=names(hooks=["127.0.0.1"]), tls=client)
            with pytest.raises(Refused, match="redirects to a URL without TLS"):
                await fetcher.fetch(f"https://hooks.test:{receiver.port}/")
        assert plain.connections == 0


async def test_a_handshake_that_hangs_is_given_up_in_time() -> None:
    gone = asyncio.Event()

    class Silent(Receiver):
        async def serve(self, reader: asyncio.StreamReader, writer: StreamWriter) -> None:
            await reader.read(1)
            let_time_pass(31)
            await reader.read()  # until the other side is gone
            gone.set()

    async with Silent(says(200)) as receiver:
        with pytest.raises(NoAnswer, match="no answer within 30 s"):
            await fetcher_for(receiver).fetch(f"https://127.0.0.1:{receiver.port}/")
        await gone.wait()  # the socket does not stay open
