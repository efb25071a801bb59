"""Who may ask what: tokens, roles, origins, hosts."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Any

import pytest
from starlette.routing import Route

from headrace import App
from headrace.core.config import HttpSettings
from headrace.errors import ConfigError
from headrace.web.address import check_reach, parse_address
from headrace.web.guard import CSRF, SAFE
from headrace.web.server import serve_http
from headrace.web.tokens import Role, read_tokens
from tests.facades.harness import settings
from tests.web.conftest import TOKENS, bearer

WRITES = ("POST", "PUT", "PATCH", "DELETE")


def every_route(app: Any) -> list[tuple[str, str]]:
    """All routes of the app, from its router: a new one is in it by itself."""
    found = [(method, route.path) for route in app._app.routes for method in route.methods]
    assert all(isinstance(route, Route) for route in app._app.routes)
    named = {"{queue:path}": "mail", "{queue}": "mail", "{id}": "7", "{name:path}": "nightly"}
    return [(method, re.sub(r"{[^}]+}", lambda part: named.get(part[0], part[0]), path)) for method, path in found]


async def test_every_route_is_closed_without_credentials(site: Any, apps: list[Any]) -> None:
    """X02: the routes are those of the router."""
    place = await site(tokens=True, writes=True)
    routes = every_route(apps[0])
    assert len(routes) >= 15
    for method, path in [*routes, ("GET", "/no/such/page"), *((method, "/api/v1/jobs") for method in WRITES)]:
        for headers in (
            {},
            {"Authorization": "Bearer wrong-token-0123456789"},
            {"Authorization": f"Bearer {TOKENS['operator'][:-1]}"},
            {"Authorization": "Basic " + b64encode(f"grafana:{TOKENS['operator']}".encode()).decode()},
            {"Authorization": "Basic !"},
            {"Authorization": TOKENS["operator"]},
            {"Authorization": "Bearer "},
        ):
            answer = await place.ask(path, method, headers=headers)
            assert answer.status == 401, (method, path, headers)
            assert answer.headers["www-authenticate"].startswith("Basic")
            assert b"token" in answer.body or method == "HEAD"


async def test_roles(site: Any, apps: list[Any]) -> None:
    place = await site(tokens=True, writes=True)
    for path, least in (
        ("/livez", "probe"),
        ("/metrics", "probe"),
        ("/scale/mail", "probe"),
        ("/api/v1/jobs", "viewer"),
    ):
        for role in Role:
            expected = role.covers(Role(least))
            answer = await place.ask(path, headers=bearer(role.value))
            assert (answer.status != 403) == expected, (path, role)
    answer = await place.ask("/api/v1/jobs", "POST", headers=bearer("viewer"))
    assert (answer.status, answer.json["error"]) == (403, "expected the token of an operator, got that of a viewer")
    basic = {"Authorization": "Basic " + b64encode(f"ada:{TOKENS['operator']}".encode()).decode()}
    assert (await place.ask("/api/v1/session", headers=basic)).json["name"] == "ada"


async def test_every_route_is_closed_to_lesser_roles_and_other_pages(site: Any, apps: list[Any]) -> None:
    """The table of all routes: for whom they are, and that no page of others reaches one that changes something."""
    place = await site(tokens=True, writes=True)
    for_probes = ("/livez", "/readyz", "/startupz", "/metrics", "/scale/mail", "/api/v1/session", "/static/{file}")
    for method, path in every_route(apps[0]):
        least = Role.PROBE if path in for_probes else Role.VIEWER if method in SAFE else Role.OPERATOR
        for role in Role:
            if not role.covers(least):
                answer = await place.ask(path, method, headers=bearer(role.value))
                assert answer.status == 403, (method, path, role)
        if method not in SAFE:
            for foreign in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
                answer = await place.ask(path, method, headers=bearer("operator") | foreign)
                assert answer.status == 403, (method, path, foreign)


async def test_pages_of_others_change_nothing(site: Any) -> None:
    place = await site(tokens=True, writes=True)
    host = str(place.address)
    for headers, status in (
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": f"http://{host}.evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}, 0),
        ({}, 0),
    ):
        for method in WRITES:
            answer = await place.ask("/api/v1/jobs", method, headers=bearer("operator") | headers)
            expected = status or (400 if method == "POST" else 405)
            assert answer.status == expected, (method, headers, answer.text)


async def test_a_browser_brings_along_what_only_our_pages_know(site: Any) -> None:
    place = await site(tokens=True, writes=True)
    basic = {"Authorization": "Basic " + b64encode(f"ada:{TOKENS['operator']}".encode()).decode()}
    assert (await place.ask("/api/v1/jobs", "POST", headers=basic)).status == 403
    known = (await place.ask("/api/v1/session", headers=basic)).json["csrf"]
    assert (await place.ask("/api/v1/jobs", "POST", headers=basic | {CSRF: known})).status == 400
    assert (await place.ask("/api/v1/jobs", "POST", headers=basic | {CSRF: known[:-1]})).status == 403
    other = (await place.ask("/api/v1/session", headers=bearer("viewer"))).json["csrf"]
    assert (await place.ask("/api/v1/jobs", "POST", headers=basic | {CSRF: other})).status == 403


async def test_it_is_read_only_unless_it_is_told_otherwise(site: Any) -> None:
    place = await site(tokens=True)
    answer = await place.ask("/api/v1/jobs", "POST", headers=bearer("operator"))
    assert (answer.status, "read-only" in answer.json["error"]) == (403, True)


async def test_without_tokens_it_answers_only_under_names_of_this_machine(site: Any) -> None:
    """A page whose name leads to 127.0.0.1 is refused (DNS rebinding)."""
    place = await site(hosts=("jobs.test",))
    for host, status in (
        ("localhost:80", 200), ("127.0.0.1", 200), ("[::1]:9", 200), ("jobs.test", 200), ("JOBS.test:8", 200),
        ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("10.0.0.1", 403), ("", 403),
    ):  # fmt: skip
        assert (await place.ask("/livez", headers={"Host": host})).status == status, host


async def test_answers_cannot_be_misused(site: Any) -> None:
    place = await site()
    for path in ("/livez", "/api/v1/overview", "/no/such/page"):
        headers = (await place.ask(path)).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert not {"server", "access-control-allow-origin"} & headers.keys()


async def test_large_bodies_are_refused(site: Any) -> None:
    place = await site(tokens=True, writes=True)
    answer = await place.ask("/api/v1/jobs", "POST", headers=bearer("operator"), body=b"x" * 65_537)
    assert answer.status == 413


def test_other_addresses_need_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("0.0.0.0:9464", ":9464", "[::]:9464", "10.0.0.1:9464", "jobs.example:9464"):
        with pytest.raises(ConfigError, match="can be reached by others, and there are no tokens"):
            check_reach(parse_address(text), protected=False)
        check_reach(parse_address(text), protected=True)
    for text in ("9464", "127.0.0.1:9464", "localhost:9464", "[::1]:9464", "127.1.2.3:1", "unix:/tmp/x"):
        check_reach(parse_address(text), protected=False)


async def test_a_worker_refuses_to_start_open_to_others() -> None:
    app = App(settings())
    with pytest.raises(ConfigError, match="no tokens"):
        async with serve_http(app, HttpSettings(address="0.0.0.0:0")):
            raise AssertionError("it must not serve")


@pytest.mark.parametrize("text", ["", "x", "host:", "host:99999", "1.2.3.4", "a b:80", "unix:", "http://host:80"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match=r"http\.address: expected"):
        parse_address(text)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("", "got none"),
        ("operator ada", "entry 1: expected lines of"),
        ("root ada 0123456789abcdef", "roles are probe, viewer, operator"),
        ("viewer bo 0123456789abcdef;operator ada short", "entry 2: expected a token of at least 16"),
        ("viewer bo 0123456789abcdef;operator bo 0123456789abcdeg", "each name once"),
    ],
)
def test_tokens_that_are_wrong_are_not_told(lines: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SITE_TOKENS", lines)
    with pytest.raises(ConfigError, match=told) as error:
        read_tokens("env:SITE_TOKENS")
    assert "0123456789abcde" not in str(error.value)
    assert "short" not in str(error.value)


def test_where_tokens_come_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# for people\n\noperator ada {TOKENS['operator']}\n")
    found = read_tokens(f"file:{file}").find(f"bearer {TOKENS['operator']}")
    assert found is not None
    assert (found.name, found.role) == ("ada", Role.OPERATOR)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tokens(f"file:{tmp_path}/none")
    with pytest.raises(ConfigError, match="no environment variable NOBODY"):
        read_tokens("env:NOBODY")
    with pytest.raises(ConfigError, match="never a token itself"):
        settings(http={"tokens": "0123456789abcdef"})
