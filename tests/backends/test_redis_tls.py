"""Valkey over TLS: the server is checked, and a client without the right certificate is told what to do."""

from __future__ import annotations

import functools
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from servers.certificates import Certificates
from servers.tls import TlsFront

from headrace.backends.redis import connection
from headrace.errors import ConfigError, Unavailable
from headrace.testing.conformance.base import T0, row
from tests.valkey import every_operation, opened, server, stores


@pytest.fixture(scope="module")
def papers() -> Iterator[Certificates]:
    """An authority."""
    made = Certificates()
    yield made
    made.close()


@pytest.fixture(scope="module")
def front(papers: Certificates) -> Iterator[TlsFront]:
    """The server behind TLS."""
    yield from fronted(functools.partial(TlsFront, server().port, *papers.issue("valkey", "IP:127.0.0.1")))


@pytest.fixture(scope="module")
def strict(papers: Certificates) -> Iterator[TlsFront]:
    """The same, for clients that show who they are."""
    make = functools.partial(TlsFront, server().port, *papers.issue("strict", "IP:127.0.0.1"), clients=papers.ca)
    yield from fronted(make)


def fronted(make: functools.partial[TlsFront]) -> Iterator[TlsFront]:
    made = make()
    yield made
    made.close()


def url(front: TlsFront, host: str = "127.0.0.1", **options: Path | str) -> str:
    return f"rediss://{host}:{front.port}/0?{urlencode(options)}"


async def refusal(where: str) -> str:
    with pytest.raises(ConfigError) as told:
        async with opened(where):
            pass
    return str(told.value)


async def test_every_operation(front: TlsFront, papers: Certificates, tmp_path: Path) -> None:
    stores.connect(tmp_path)
    async with opened(url(front, ca=papers.ca)) as store:
        await every_operation(store)


async def test_large_jobs_go_through(front: TlsFront, papers: Certificates, tmp_path: Path) -> None:
    stores.connect(tmp_path)
    async with opened(url(front, ca=papers.ca)) as store:
        blob = bytes(range(256)) * 16_384
        await store.insert([row(1, cells={"blob": blob})], T0)
        [found] = await store.fetch([row(1).id], frozenset({"blob"}), T0)
        assert found is not None
        assert found.cells["blob"] == blob


async def test_an_authority_that_nobody_knows_is_not_trusted(front: TlsFront) -> None:
    told = await refusal(url(front))
    assert re.search(r"no TLS connection: .*certificate verify failed.*Check ca, cert, key and verify", told)


async def test_another_authority_is_not_trusted(front: TlsFront) -> None:
    other = Certificates()
    try:
        assert "certificate verify failed" in await refusal(url(front, ca=other.ca))
    finally:
        other.close()


async def test_a_certificate_for_another_host_is_not_trusted(papers: Certificates) -> None:
    elsewhere = TlsFront(server().port, *papers.issue("elsewhere", "DNS:elsewhere.example"))
    try:
        assert "certificate verify failed" in await refusal(url(elsewhere, ca=papers.ca))
        async with opened(url(elsewhere, ca=papers.ca, verify="no")) as store:
            await store.stats(T0)
    finally:
        elsewhere.close()


async def test_whoever_says_so_trusts_anybody(front: TlsFront) -> None:
    async with opened(url(front, verify="no")) as store:
        await store.stats(T0)


async def test_a_client_with_a_certificate(strict: TlsFront, papers: Certificates) -> None:
    cert, key = papers.issue("worker")
    async with opened(url(strict, ca=papers.ca, cert=cert, key=key)) as store:
        await store.stats(T0)
    assert "worker" in strict.names


async def test_certificate_and_key_may_be_in_one_file(strict: TlsFront, papers: Certificates, tmp_path: Path) -> None:
    cert, key = papers.issue("both")
    both = tmp_path / "both.pem"
    both.write_bytes(key.read_bytes() + cert.read_bytes())
    async with opened(url(strict, ca=papers.ca, cert=both)) as store:
        await store.stats(T0)


async def test_a_certificate_without_its_key(strict: TlsFront, papers: Certificates) -> None:
    cert, _ = papers.issue("keyless")
    told = await refusal(url(strict, ca=papers.ca, cert=cert))
    assert "cert: expected its private key in the same file, or key=PATH beside it" in told
    assert str(cert) in told


async def test_a_client_without_the_certificate_that_it_needs(strict: TlsFront, papers: Certificates) -> None:
    """With TLS 1.3 the server says so only after the handshake, in the place of its first answer."""
    assert re.search(r"certificate required.*Check ca, cert", await refusal(url(strict, ca=papers.ca)))


async def test_a_client_with_a_strangers_certificate(strict: TlsFront, papers: Certificates) -> None:
    other = Certificates()
    try:
        cert, key = other.issue("stranger")
        with pytest.raises((ConfigError, Unavailable), match=r"unknown ca"):
            async with opened(url(strict, ca=papers.ca, cert=cert, key=key)):
                pass
    finally:
        other.close()
    assert "stranger" not in strict.names


@pytest.mark.parametrize("option", ["ca", "cert", "key"])
async def test_files_that_cannot_be_read(front: TlsFront, papers: Certificates, tmp_path: Path, option: str) -> None:
    cert, key = papers.issue("reader")
    good: dict[str, Path | str] = {"ca": papers.ca, "cert": cert, "key": key}
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("no certificate at all")
    for wrong in (tmp_path / "none.pem", nonsense, tmp_path):
        told = await refusal(url(front, **(good | {option: wrong})))
        assert re.search(r"expected readable PEM files in ca, cert and key", told)
        assert str(wrong) in told


async def test_tls_where_there_is_none_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without it waits for the end of a line that never comes."""
    monkeypatch.setattr(connection, "CONNECT", 0.3)
    with pytest.raises((ConfigError, Unavailable), match=r"If it speaks no TLS, its URL begins with redis://"):
        async with opened(f"rediss://127.0.0.1:{server().port}/0?verify=no"):
            pass


async def test_no_tls_where_there_is_some_does_not_hang(front: TlsFront) -> None:
    for scheme, other in (("redis", "rediss"), ("valkey", "valkeys"), ("redis+cluster", r"rediss\+cluster")):
        with pytest.raises((ConfigError, Unavailable), match=rf"If it speaks TLS, its URL begins with {other}://"):
            async with opened(f"{scheme}://127.0.0.1:{front.port}/0"):
                pass


async def test_the_kernel_watches_over_tls_connections_too(front: TlsFront, papers: Certificates) -> None:
    async with opened(url(front, ca=papers.ca)) as store:
        raw = store._connections._kept.connection._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
