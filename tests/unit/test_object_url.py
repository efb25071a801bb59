"""URLs of object stores: what they name, what they refuse, and that their secrets are never shown."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.pretty import pretty_repr

from headrace.errors import ConfigError
from headrace.payloads.object_url import parse
from headrace.payloads.objects import Objects

SECRETS = [
    "s3://jobs/prod?region=eu-central-1&access_key_id=AK&secret_access_key=hunter2",
    "s3://jobs?access_key_id=AK&secret_access_key=a&session_token=hunter2",
    "az://jobs/prod?account_name=ada&account_key=aHVudGVyMg%3D%3D",
]


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("s3://jobs", "s3://jobs"),
        ("s3://jobs/", "s3://jobs"),
        ("s3://jobs/a/b%20c/?timeout=2s", "s3://jobs/a/b c"),
        ("gs://jobs/prod", "gs://jobs/prod"),
        ("az://jobs/prod?account_name=ada", "az://jobs/prod"),
        ("file:///var/lib/jobs/", "file:///var/lib/jobs"),
        ("memory://", "memory://"),
    ],
)
def test_a_location(url: str, where: str) -> None:
    assert parse(url).where == where


def test_options() -> None:
    location = parse("s3://jobs?endpoint=http://127.0.0.1:9000&region=eu%2Dnorth-1&timeout=1m30s")
    assert location.options == {"endpoint": "http://127.0.0.1:9000", "region": "eu-north-1"}
    assert location.timeout == 90
    assert parse("s3://jobs?secret_access_key=a%2Bb+c").options == {"secret_access_key": "a+b+c"}


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "expected one of s3://, gs://, az://, file://, memory://, got ''"),
        ("s3:jobs", "expected one of s3://"),
        ("https://jobs.example.com", "got 'https'"),
        ("s3://", "expected s3://bucket/prefix, got no bucket"),
        ("s3://ada:hunter2@jobs", "expected no login in it"),
        ("s3://jobs/a//b", "expected a prefix of names between single slashes, got '/a//b'"),
        ("s3://jobs/../b", "single slashes"),
        ("s3://jobs/a%0Ab", "single slashes"),
        ("s3://jobs#there", "a part of it would be lost"),
        ("s3://jobs?region=a&region=b", "a part of it would be lost"),
        ("s3://jobs?secret=hunter2", "unknown option 'secret'. Known here: access_key_id, endpoint, region, "),
        ("s3://jobs?hunter2", "it cannot be read"),
        ("s3://jobs?timeout=0s", "timeout: expected more than 0 s"),
        ("s3://jobs?timeout=soon", "timeout: expected a duration"),
        ("s3://[jobs", "it cannot be read"),
        ("file://jobs/here", "expected file:///absolute/path"),
        ("file:///jobs?region=a", "Known here: timeout"),
        ("memory:///jobs", "expected memory:// alone"),
    ],
)
def test_what_is_refused(url: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(url)
    assert told in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("url", SECRETS)
async def test_secrets_are_never_shown(url: str) -> None:
    location = parse(url)
    for thing in (location, Objects(location)):
        console = Console(file=io.StringIO(), width=1_000)
        console.print(thing)
        shown = console.file.getvalue()  # type: ignore[attr-defined]
        for text in (repr(thing), str(thing), pretty_repr(thing), shown):
            assert "hunter2" not in text
            assert "aHVudGVyMg" not in text
            assert location.where in text


async def test_what_obstore_cannot_use_is_told_without_its_value() -> None:
    with pytest.raises(ConfigError, match=r"az://jobs: obstore cannot use this URL with its options") as refused:
        Objects(parse("az://jobs?account_name=ada&account_key=hunter2"))
    assert "hunter2" not in repr(refused.value)
    assert refused.value.__suppress_context__


async def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"object store file:///\S+/file/under: expected a directory, or room for"):
        Objects(parse(f"file://{tmp_path}/file/under"))


async def test_a_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    """It has payloads and results. One that is there already stays as it is."""
    there = tmp_path / "there"
    there.mkdir(mode=0o755)
    for name, mode in (("new/objects", 0o700), ("there", 0o755)):
        await Objects(parse(f"file://{tmp_path}/{name}")).create("a", b"b")
        assert (tmp_path / name).stat().st_mode & 0o777 == mode
