"""Nothing goes in clear to another machine unless somebody has said so."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from headrace.api.connection import open_backend
from headrace.backends.postgres import PostgresBackend, transport
from headrace.backends.redis import endpoint
from headrace.backends.redis.connection import check_clear
from headrace.backends.service_file import service_options
from headrace.errors import ConfigError
from tests import valkey

ASK_FOR_TLS = b"\x00\x00\x00\x08\x04\xd2\x16/"


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PGSSLMODE", "PGSSLROOTCERT", "PGHOST", "PGHOSTADDR", "PGSERVICE", "PGSERVICEFILE", "PGSYSCONFDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def everything_is_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests reach no other machine than this one."""
    for module in (transport, endpoint):
        monkeypatch.setattr(module, "is_loopback", lambda host: False)


def said(url: str) -> tuple[object, object]:
    backend = open_backend(url)
    assert isinstance(backend, PostgresBackend)
    given = conninfo_to_dict(backend._connections.conninfo)
    return given.get("sslmode"), given.get("sslrootcert")


@pytest.mark.parametrize(
    "url",
    ["postgresql://db/x", "postgresql://10.0.0.1/x", "postgresql://localhost,db/x", "postgresql:///x?host=db",
     "postgresql://localhost/x?hostaddr=10.0.0.1", "postgresql://[fd00::1]/x"],
)  # fmt: skip
def test_another_machine_has_to_show_who_it_is(url: str) -> None:
    mode, authorities = said(url)
    assert mode == "verify-full"
    assert authorities == "system" or Path(str(authorities)).is_file()


@pytest.mark.parametrize(
    "url",
    ["postgresql:///x", "postgresql://localhost/x", "postgresql://127.0.0.1,[::1]/x", "postgresql:///x?host=/run/pg",
     "postgresql://db/x?hostaddr=127.0.0.1"],
)  # fmt: skip
def test_this_machine_does_not(url: str) -> None:
    assert said(url) == (None, None)


def test_what_somebody_says_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert said("postgresql://db/x?sslmode=disable") == ("disable", None)
    assert said("postgresql://db/x?sslrootcert=/ours.pem") == ("verify-full", "/ours.pem")
    (tmp_path / ".postgresql").mkdir()
    (tmp_path / ".postgresql" / "root.crt").touch()
    assert said("postgresql://db/x") == ("verify-full", None)
    monkeypatch.setenv("PGHOST", "db")
    assert said("postgresql:///x")[0] == "verify-full"
    monkeypatch.setenv("PGSSLMODE", "prefer")
    assert said("postgresql://db/x") == (None, None)


SERVICES = """
# ours
[near]
host=127.0.0.1
dbname=x

[far]
host=db
sslmode=prefer
sslmode=require
[shop]
  host=db
  sslrootcert=/ours.pem
[ldap]
ldap://ldap.example/x?y?base
sslmode=disable
[next]
sslmode=disable
"""


@pytest.mark.parametrize("by_environment", [False, True])
@pytest.mark.parametrize("place", ["PGSERVICEFILE", "HOME", "PGSYSCONFDIR"])
def test_a_service_is_no_way_around_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by_environment: bool, place: str
) -> None:
    """Only what its file says about TLS holds."""

    def of(service: str, host: str = "", more: str = "") -> tuple[object, object]:
        if by_environment:
            monkeypatch.setenv("PGSERVICE", service)
            return said(f"postgresql://{host}/x?{more}")
        return said(f"postgresql://{host}/x?service={service}{more and '&'}{more}")

    (tmp_path / "more").mkdir()
    name = {"PGSERVICEFILE": "services", "HOME": ".pg_service.conf", "PGSYSCONFDIR": "more/pg_service.conf"}[place]
    (tmp_path / name).write_text(SERVICES)
    if place != "HOME":
        monkeypatch.setenv(place, str(tmp_path / (name if place == "PGSERVICEFILE" else "more")))
    assert of("far") == (None, None)
    assert of("far", more="sslmode=verify-ca")[0] == "verify-ca"
    assert of("near") == (None, None)
    assert of("near", "db")[0] == "verify-full"
    assert of("shop") == ("verify-full", None)
    assert of("shop", "localhost") == (None, None)
    assert of("nobody", "db")[0] == "verify-full"
    assert of("nobody") == (None, None)


@pytest.mark.parametrize("service", ["near", "far", "shop"])
def test_services_are_read_as_libpq_reads_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, service: str) -> None:
    (tmp_path / "services").write_text(SERVICES)
    before = {one.keyword: one.val for one in Conninfo.get_defaults()}
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    monkeypatch.setenv("PGSERVICE", service)
    after = {one.keyword: one.val for one in Conninfo.get_defaults()}
    changed = {key.decode(): (after[key] or b"").decode() for key in after if after[key] != before[key]}
    changed.pop("service")
    expected = service_options({})
    assert expected
    assert changed == {key: value for key, value in expected.items() if (key, value) != ("sslmode", "prefer")}


async def test_a_doctor_sees_what_a_service_says(
    everything_is_far: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".pg_service.conf").write_text(SERVICES)
    loud = open_backend("postgresql:///x?service=far")
    assert isinstance(loud, PostgresBackend)
    assert [(level, check) for level, check, _, _ in await loud.checks()] == [("warn", "transport")]


async def test_a_postgres_without_tls_gets_no_password(everything_is_far: None) -> None:
    heard = bytearray()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.read(8))
        writer.write(b"N")
        heard.extend(await reader.read())
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConfigError, match=r"SSL was required.*sslmode=disable"):
            await open_backend(f"postgresql://ada:secret@127.0.0.1:{port}/x?gssencmode=disable").open()
    assert bytes(heard) == ASK_FOR_TLS


async def test_a_doctor_says_what_others_can_hear(everything_is_far: None) -> None:
    quiet, loud = open_backend("postgresql://db/x"), open_backend("postgresql://db/x?sslmode=prefer")
    assert isinstance(quiet, PostgresBackend)
    assert isinstance(loud, PostgresBackend)
    assert await quiet.checks() == []
    [(level, check, what, _)] = await loud.checks()
    assert (level, check) == ("warn", "transport")
    assert "in clear" in what


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
async def test_a_valkey_on_another_machine_is_talked_to_by_tls(scheme: str, everything_is_far: None) -> None:
    url = valkey.server().url().replace("redis", scheme, 1)
    with pytest.raises(ConfigError, match=rf"{scheme}s://.*plaintext=yes"):
        await open_backend(url).open()
    loud = open_backend(url + "?plaintext=yes")
    await loud.open()
    facts = await loud.checks()  # type: ignore[attr-defined]
    await loud.close()
    assert ("warn", "transport") in [fact[:2] for fact in facts]


@pytest.mark.parametrize("page", ["docs/howto/streams.md", "src/headrace/api/streams.py"])
def test_the_servers_that_the_docs_name_may_be_talked_to(page: str) -> None:
    found = re.findall("streams://[?][^`']*valkey=(rediss?://[^&`']+)", Path(page).read_text())
    assert found
    for url in found:
        given = endpoint.parse(url, {}, url)
        for address in given.addresses:
            check_clear(given, address)


@pytest.mark.parametrize("url", ["postgresql://%ff@h/x", "postgresql://a:%ff@h/x", "redis://a:%ff@h"])
def test_what_is_no_text_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="UTF-8"):
        open_backend(url)


def test_a_schema_that_would_be_somebody_elses() -> None:
    with pytest.raises(ConfigError, match=r"is not \$user"):
        open_backend("postgresql://localhost/x?schema=$user")
