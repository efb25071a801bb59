"""Where a store of PostgreSQL and Valkey is."""

import pytest

from headrace import Streams, connect
from headrace.api.connection import open_backend
from headrace.backends.streams import StreamsBackend, StreamsOptions
from headrace.errors import ConfigError
from headrace.text import url_without_secrets

PLAIN = "streams://?pg=postgresql://localhost/jobs&valkey=redis://localhost:6379"


def test_a_url_names_both_servers() -> None:
    assert isinstance(open_backend(PLAIN), StreamsBackend)
    assert isinstance(open_backend(f"{PLAIN}&window=500&horizon=10&count=50&consumer=pod-7"), StreamsBackend)


def test_streams_is_its_url_and_the_object_store() -> None:
    given = Streams(pg="postgresql://localhost/jobs?schema=s&connect_timeout=3", valkey="redis://localhost", window=200)
    assert isinstance(open_backend(given.url), StreamsBackend)
    given = Streams(
        pg="postgresql://localhost/jobs", valkey="redis://localhost", objects="s3://b/p?region=r&timeout=2s"
    )
    for where in (given, given.url):
        client = connect(where, objects={"keep": "5d"})
        assert (client.settings.objects.url, client.settings.objects.keep) == (given.objects, "5d")
    assert isinstance(open_backend(given.url), StreamsBackend)


@pytest.mark.parametrize(
    "url",
    ["sqlite:///old.db -> {0}", "{0} -> sqlite:///new.db", "a = sqlite:///a.db | b = {0} -> memory:// | x=b, *=a"],
)
def test_the_object_store_of_a_part_is_that_of_the_whole(url: str) -> None:
    """Else no process could load what lies there."""
    client = connect(url.format(f"{PLAIN}&objects=s3://b/p"), objects={"keep": "5d"})
    assert (client.settings.objects.url, client.settings.objects.keep) == ("s3://b/p", "5d")


def test_parts_have_one_object_store() -> None:
    url = f"a = {PLAIN}&objects=s3://b/p | b = {PLAIN}&objects=s3://b/q?secret_key=s3cret | x=b, *=a"
    with pytest.raises(ConfigError, match="expected one for all stores of a URL, got 's3://b/p', 's3://b/q") as refused:
        connect(url)
    assert "s3cret" not in str(refused.value)


def test_every_option_can_be_said_in_python() -> None:
    given = Streams(
        pg="postgresql://localhost/jobs",
        valkey="redis://localhost",
        count=50,
        entry_bytes=2_048,
        horizon=10,
        window=200,
    )
    backend = open_backend(given.url)
    assert isinstance(backend, StreamsBackend)
    assert backend.options == StreamsOptions(window=200, entry_bytes=2_048, horizon=10_000_000, count=50)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("streams://?pg=postgresql://localhost/jobs", "valkey is missing"),
        ("streams://?valkey=redis://localhost", "pg is missing"),
        ("streams://host?pg=postgresql://localhost/jobs&valkey=redis://localhost", "expected streams://"),
        ("streams://?pg=redis://localhost&valkey=redis://localhost", "expected a URL like postgresql"),
        ("streams://?pg=postgresql://localhost/jobs&valkey=postgresql://localhost", "expected a URL like redis"),
        ("streams://?pg=postgresql://localhost/jobs&valkey=redis+cluster://localhost", "got a cluster"),
        (f"{PLAIN}&window=10", "100 to 1,000,000"),
        (f"{PLAIN}&window=many", "a whole number"),
        (f"{PLAIN}&widow=1000", "unknown option 'widow'"),
        (f"{PLAIN}&consumer=a%20b", "consumer"),
    ],
)
def test_what_cannot_be_is_refused(url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        open_backend(url)


def test_no_secret_of_either_server_is_shown() -> None:
    given = Streams(pg="postgresql://ada:s3cret@db/jobs?sslmode=disable", valkey="redis://:t0ken@cache:6379")
    for shown in (repr(given), url_without_secrets(given.url)):
        assert "s3cret" not in shown
        assert "t0ken" not in shown
        assert "cache:6379" in shown
