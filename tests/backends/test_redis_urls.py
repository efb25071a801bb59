"""The URLs of stores on Valkey: what each part says, and what is wrong with one that cannot be meant."""

from __future__ import annotations

import asyncio
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from servers.process import free_ports
from servers.valkey import Valkey

from headrace import connect
from headrace.api.connection import open_backend
from headrace.backends.redis.endpoint import Address, Endpoint, Mode
from headrace.backends.refusal import NotLetIn
from headrace.errors import ConfigError, SchemaMismatch, Unavailable
from headrace.testing.conformance.base import T0, row
from tests.valkey import server

SECRET = "hunter2"


def endpoint(url: str) -> Endpoint:
    backend: Any = open_backend(url)
    found = backend._endpoint
    assert isinstance(found, Endpoint)
    return found


def refused(url: str) -> str:
    """What somebody is told who gives this URL."""
    with pytest.raises(ConfigError) as told:
        connect(url)
    return "".join(traceback.format_exception(told.value))


FORMS: list[tuple[str, Mode, list[str]]] = [
    ("redis://", Mode.ONE, ["localhost:6379"]),
    ("redis://db", Mode.ONE, ["db:6379"]),
    ("redis://db/", Mode.ONE, ["db:6379"]),
    ("redis://db:7000", Mode.ONE, ["db:7000"]),
    ("redis://10.0.0.1:7000/0", Mode.ONE, ["10.0.0.1:7000"]),
    ("redis+sentinel://a/0?master=jobs", Mode.SENTINEL, ["a:26379"]),
    ("redis+sentinel://a,b:26380,c/0?master=jobs", Mode.SENTINEL, ["a:26379", "b:26380", "c:26379"]),
    ("redis+cluster://a", Mode.CLUSTER, ["a:6379"]),
    ("redis+cluster://a:7000,b:7001,c:7002", Mode.CLUSTER, ["a:7000", "b:7001", "c:7002"]),
    ("redis+cluster://a:7000,b:7001/0", Mode.CLUSTER, ["a:7000", "b:7001"]),
    ("redis+unix:///run/valkey.sock", Mode.ONE, ["/run/valkey.sock"]),
    ("redis+unix:///run/a%20socket", Mode.ONE, ["/run/a socket"]),
]


@pytest.mark.parametrize("family", ["redis", "valkey"])
@pytest.mark.parametrize(("url", "mode", "addresses"), FORMS)
def test_where_the_servers_are(family: str, url: str, mode: Mode, addresses: list[str]) -> None:
    found = endpoint(url.replace("redis", family, 1))
    assert (found.mode, [str(address) for address in found.addresses], found.tls) == (mode, addresses, None)


@pytest.mark.parametrize("family", ["rediss", "valkeys"])
@pytest.mark.parametrize("rest", ["://db", "+sentinel://a,b?master=jobs", "+cluster://a,b"])
def test_one_letter_more_is_tls(family: str, rest: str) -> None:
    tls = endpoint(family + rest).tls
    assert tls is not None
    assert (tls.ca, tls.cert, tls.key, tls.verify) == (None, None, None, True)


def test_an_address_of_version_six_stands_in_brackets() -> None:
    assert endpoint("redis://[::1]:7000").addresses == (Address("::1", 7000),)
    assert endpoint("redis+cluster://[::1]:7000,[fe80::2]").addresses == (
        Address("::1", 7000),
        Address("fe80::2", 6379),
    )


@pytest.mark.parametrize(
    ("url", "number"),
    [
        ("redis://db", 0),
        ("redis://db/0", 0),
        ("redis://db/15", 15),
        ("redis+sentinel://a/3?master=jobs", 3),
        ("redis+unix:///run/valkey.sock?database=4", 4),
    ],
)
def test_the_number_of_the_database(url: str, number: int) -> None:
    assert endpoint(url).database == number


def test_the_options_of_tls() -> None:
    tls = endpoint("rediss://db?ca=/etc/ca.pem&cert=/etc/my%20cert.pem&key=/etc/my.key&verify=no").tls
    assert tls is not None
    assert (tls.ca, tls.cert, tls.key, tls.verify) == ("/etc/ca.pem", "/etc/my cert.pem", "/etc/my.key", False)


PASSWORDS = [
    "plain", "p@ss", "p:a:s:s", "a/b/c", "what?", "#1", "50%", "%41", "a+b", "a b", "[x]", "&amp=1", "ключ", "🙂",
    "\\", "'\"",
]  # fmt: skip


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("form", ["redis://{}@db", "rediss+sentinel://{}@a,b?master=jobs", "redis+cluster://{}@a,b"])
def test_user_and_password_are_percent_encoded(form: str, password: str) -> None:
    encoded = quote(password, safe="")
    found = endpoint(form.format(f"a%40da:{encoded}"))
    assert (found.user, found.password) == ("a@da", password)
    assert (endpoint(form.format(f":{encoded}")).user, endpoint(form.format(f":{encoded}")).password) == (
        None,
        password,
    )


def test_sentinels_may_have_a_login_of_their_own() -> None:
    found = endpoint("redis+sentinel://ada:one@a,b/0?master=jobs&sentinel_user=eve&sentinel_password=t%26wo")
    assert (found.user, found.password, found.watcher) == ("ada", "one", ("eve", "t&wo"))
    watching = found.sentinel(Address("a", 26379))
    assert (watching.user, watching.password) == ("eve", "t&wo")
    assert watching.where.endswith(": the sentinel a:26379")
    assert endpoint("redis+sentinel://ada:one@a?master=jobs").sentinel(Address("a", 26379)).password is None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://db?colour=red", ["unknown option 'colour'. Known here: listen, plaintext, prefix"]),
        ("rediss://db?colour=red", ["Known here: ca, cert, key, listen, prefix, verify"]),
        (
            "redis+sentinel://a?master=m&x=1",
            ["Known here: listen, master, plaintext, prefix, sentinel_password, sentinel_user"],
        ),
        ("redis+cluster://a?x=1", ["Known here: listen, plaintext, prefix, shards"]),
        ("redis+unix:///run/x.sock?x=1", ["Known here: database, listen, prefix"]),
        ("redis://db?db=3", ["unknown option 'db'", "write its number after the host, like redis://host/3"]),
        ("valkeys://db?db=3", ["like valkeys://host/3"]),
        ("redis+unix:///run/x.sock?db=3", ["write database=3"]),
        ("redis+unix:///run/x.sock?ca=/x", ["a socket of the file system has no TLS"]),
        ("redis+cluster://a?db=3", ["a cluster has only database 0"]),
        ("redis://db?username=ada", ["write it before the host, like redis://user:password@host"]),
        ("redis://db?ssl=true", ["for TLS the URL begins with rediss://"]),
        ("rediss://db?tls=true", ["rediss:// is TLS already: leave it out"]),
        ("redis://db?Prefix=x", ["unknown option 'Prefix'"]),
        ("redis://db?master=jobs", ["unknown option 'master'", "it belongs to redis+sentinel://"]),
        ("redis://db?database=3", ["unknown option 'database'", "redis://host/3"]),
        ("redis://db?ca=/x", ["unknown option 'ca'", "for TLS the URL begins with rediss://"]),
        ("valkey+cluster://a?ca=/x", ["for TLS the URL begins with valkeys+cluster://"]),
        ("redis+cluster://a,b?master=jobs", ["unknown option 'master'", "it belongs to redis+sentinel://"]),
        ("redis://db?shards=4", ["unknown option 'shards'", "it belongs to redis+cluster://"]),
        ("redis+cluster://a?shards=0", ["shards: expected a number from 1 to 1024", "'0'"]),
        ("redis+cluster://a?shards=many", ["shards: expected a number", "'many'"]),
        ("redis://db?prefix=a&prefix=b", ["repeated option"]),
        ("redis://db?prefix=", ["prefix: expected"]),
        ("redis://db?prefix=a{b}", ["prefix: expected", "braces"]),
        *((f"redis://db?prefix=a{c}", ["prefix: expected", "without"]) for c in ("*", "%3F", "[b]", "^", "%5C")),
        ("redis://db?plaintext=maybe", ["plaintext: expected yes or no, got 'maybe'"]),
        ("rediss://db?plaintext=yes", ["unknown option 'plaintext'"]),
        ("redis://ada:%ff@db", ["percent-encoded UTF-8"]),
        ("redis://db?listen=maybe", ["listen: expected 'yes' or 'no'", "maybe"]),
        ("rediss://db?verify=perhaps", ["verify: expected", "yes", "no", "perhaps"]),
        ("rediss://db?key=/etc/my.key", ["key: expected its certificate"]),
        ("redis://db:port", ["expected host:port", "'db:port'"]),
        ("redis://db:0", ["expected host:port", "'db:0'"]),
        ("redis://db:65536", ["expected host:port", "'db:65536'"]),
        ("redis://db:-1", ["expected host:port", "'db:-1'"]),
        ("redis://db:6379:1", ["expected host:port"]),
        ("redis+cluster://a:7000,b:x", ["expected host:port", "'b:x'"]),
        ("redis+cluster://a:7000,,b", ["expected host:port"]),
        ("redis+cluster://a:7000,", ["expected host:port"]),
        ("redis://db/jobs", ["expected the number of a database", "'jobs'"]),
        ("redis://db/-1", ["expected the number of a database", "'-1'"]),
        ("redis://db/1/2", ["expected the number of a database"]),
        ("redis://db/٣", ["expected the number of a database"]),
        ("redis+unix:///run/x.sock?database=one", ["expected the number of a database", "'one'"]),
        ("redis+cluster://a,b/1", ["a cluster has only database 0", "1"]),
        ("redis+sentinel://a,b/0", ["?master=NAME"]),
        ("redis+sentinel://a,b/0?master=", ["?master=NAME"]),
        ("redis+sentinel://a?master=jobs&sentinel_user=eve", ["sentinel_password"]),
        ("redis://a,b", ["redis+cluster://", "redis+sentinel://"]),
        ("redis+unix://host/run/x.sock", ["expected redis+unix:///path/of/the/socket"]),
        ("redis+unix://", ["expected redis+unix:///path/of/the/socket"]),
        ("rediss+unix:///run/x.sock", ["+unix:///path/of/the/socket"]),
        ("redis://ada@db", ["expected user:password@"]),
        ("redis://ada:@db", ["expected user:password@"]),
        ("redis://:@db", ["expected user:password@"]),
        ("redis+tls://db", ["redis+tls://db"]),
        ("redis://db#0", ["fragment"]),
        ("redis://d b", ["blank"]),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_reason(url: str, words: list[str]) -> None:
    told = refused(url)
    for word in words:
        assert word in told


@pytest.mark.parametrize(
    "url",
    [
        f"redis://ada:{SECRET}@db?colour=red",
        f"redis://ada:{SECRET}@db:port",
        f"redis:ada:{SECRET}@db",
        f"ada:{SECRET}@db/x",
        *(f"redis://db?{name}={SECRET}" for name in ("passwrd", "pwd", "pass", "auth", "x")),
        *(f"postgresql://db/x?{name}={SECRET}" for name in ("passwrd", "pwd", "pass", "auth", "x")),
        f"postgresql:ada:{SECRET}@db/x",
        f"redis://ada:{SECRET}@db/jobs",
        f"redis://{SECRET}@db",
        f"redis://ada:{SECRET}/@db:port",
        f"redis://ada:{SECRET}?@db",
        f"redis://ada:x?{SECRET}@db",
        f"redis://ada:{SECRET}#@db",
        f"redis://ada:x#{SECRET}@db",
        f"redis://ada:x@{SECRET}@db/jobs",
        f"redis://ada:[{SECRET}@db",
        f"redis://ada:%zz{SECRET}@db/jobs",
        f"redis+sentinel://ada:{SECRET}@a,b",
        f"redis+sentinel://a,b?sentinel_password={SECRET}",
        f"redis+sentinel://a,b?master=jobs&sentinel_password={SECRET}&colour=red",
        f"redis+cluster://ada:{SECRET}@a,b/1",
        f"redis+unix://ada:{SECRET}@host/x",
        f"redis://db?password={SECRET}",
        f"redis+tls://ada:{SECRET}@db",
    ],
)
def test_a_secret_is_never_shown(url: str) -> None:
    assert SECRET not in refused(url)


def test_nothing_that_is_printed_of_a_store_has_a_secret_in_it() -> None:
    backend: Any = open_backend(f"redis+sentinel://ada:{SECRET}@a?master=jobs&sentinel_password={SECRET}2")
    for one in (
        backend,
        backend._endpoint,
        backend._endpoint.sentinel(Address("a", 1)),
        backend.sibling(),
        vars(backend),
    ):
        assert SECRET not in repr(one)


async def test_nobody_there(tmp_path: Path) -> None:
    """What is told names the store, and not who wanted in."""
    [port] = free_ports(1)
    for url in (
        f"redis://ada:{SECRET}@127.0.0.1:{port}/0",
        f"redis+sentinel://ada:{SECRET}@127.0.0.1:{port}/0?master=jobs&sentinel_password={SECRET}",
        f"redis+cluster://ada:{SECRET}@127.0.0.1:{port}",
        f"rediss://ada:{SECRET}@127.0.0.1:{port}/0",
        f"redis+unix://ada:{SECRET}@{tmp_path}/none",
    ):
        backend = open_backend(url)
        with pytest.raises(Unavailable) as told:
            await backend.open()
        await backend.close()
        assert SECRET not in "".join(traceback.format_exception(told.value))
        assert str(port) in str(told.value) or "none" in str(told.value)


async def test_databases_and_prefixes_are_stores_of_their_own() -> None:
    urls = [server().url(7), server().url(8), server().url(7) + "?prefix=b"]
    server().call("FLUSHALL")
    for url in [*urls, server().url(7).replace("redis:", "valkey:")]:
        backend = open_backend(url)
        await backend.open()
        try:
            expected = "same" if url.startswith("valkey") else "new"
            assert [answer.status.value for answer in await backend.insert([row(1)], T0)] == [expected]
        finally:
            await backend.close()


async def test_a_database_that_the_server_does_not_have() -> None:
    backend = open_backend(server().url(4_000))
    with pytest.raises(ConfigError, match="4000"):
        await backend.open()
    await backend.close()


@pytest.mark.parametrize("key", ["busy{jobs}:v", "busy{jobs}:q"])
async def test_a_key_of_something_else_is_told_with_the_prefix(key: str) -> None:
    server().call("FLUSHALL")
    server().call("LPUSH", key, "x")
    with pytest.raises(SchemaMismatch) as told:
        await used(server().url() + "?prefix=busy")
    assert "under the prefix 'busy'" in str(told.value)
    assert "Other software uses this prefix: give this store its own, ?prefix=NAME" in str(told.value)
    assert "user_script" not in str(told.value)


async def used(url: str) -> None:
    backend = open_backend(url)
    try:
        await backend.open()
        await backend.insert([row(1)], T0)
    finally:
        await backend.close()


async def test_a_password_for_a_server_that_has_none() -> None:
    backend = open_backend(f"redis://:{SECRET}@127.0.0.1:{server().port}")
    with pytest.raises(NotLetIn) as told:
        await backend.open()
    await backend.close()
    assert "asks for no password: leave the password out of the URL" in str(told.value)
    assert SECRET not in "".join(traceback.format_exception(told.value))


async def test_a_socket_of_the_file_system(tmp_path: Path) -> None:
    path = Path(server().directory) / "a socket"
    valkey = Valkey(None, {"unixsocket": str(path), "requirepass": SECRET})
    valkey.start()
    backend = open_backend(f"redis+unix://:{SECRET}@{quote(str(path))}?database=3")
    try:
        await backend.open()
        await backend.insert([row(1)], T0)
        assert [answer is not None for answer in await backend.fetch([row(1).id], at=T0)] == [True]
    finally:
        await backend.close()
        valkey.close()


async def test_what_answers_there_may_be_something_else() -> None:
    """A web server, say."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    [port] = free_ports(1)
    async with await asyncio.start_server(serve, "127.0.0.1", port):
        backend = open_backend(f"redis://127.0.0.1:{port}")
        with pytest.raises(Unavailable, match="does not speak the protocol of Valkey and Redis"):
            await backend.open()
        await backend.close()
