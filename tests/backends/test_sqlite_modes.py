"""The files of a store are its owner's alone, unless the database was there before."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.backends.sqlite import SqliteBackend, files
from headrace.errors import ConfigError
from headrace.testing.conformance.base import row


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose name is short enough for sockets to lie in it."""
    return tmp_path_factory.mktemp("m")


def modes(place: Path) -> dict[str, int]:
    """Of all that lies there, sockets under one name."""
    found = {}
    for path in sorted(place.rglob("*")):
        name = "socket" if path.is_socket() else path.name
        found[name] = stat.S_IMODE(path.lstat().st_mode)
    return found


async def all_files(store: SqliteBackend, place: Path) -> dict[str, int]:
    await store.open()
    try:
        assert store.hints is not None
        async with store.hints.listen(["queue:q"]):
            await store.insert([row(1)])
            return modes(place)
    finally:
        await store.close()


async def test_what_is_made_is_for_the_owner_alone(place: Path) -> None:
    assert await all_files(SqliteBackend(place / "jobs.db"), place) == {
        "jobs.db": 0o600, "jobs.db-latch": 0o600, "jobs.db-shm": 0o600, "jobs.db-wal": 0o600, "jobs.db-wake": 0o700,
        "socket": 0o600,
    }  # fmt: skip


async def test_beside_a_database_that_a_group_shares_all_is_shared(place: Path) -> None:
    path = place / "jobs.db"
    path.touch()
    path.chmod(0o660)
    assert await all_files(SqliteBackend(path), place) == {
        "jobs.db": 0o660, "jobs.db-latch": 0o660, "jobs.db-shm": 0o660, "jobs.db-wal": 0o660, "jobs.db-wake": 0o770,
        "socket": 0o660,
    }  # fmt: skip


async def test_what_is_there_stays_as_it_is(tmp_path: Path) -> None:
    await all_files(SqliteBackend(tmp_path / "jobs.db"), tmp_path)
    (tmp_path / "jobs.db-latch").chmod(0o644)
    (tmp_path / "jobs.db").chmod(0o640)
    found = await all_files(SqliteBackend(tmp_path / "jobs.db"), tmp_path)
    assert (found["jobs.db"], found["jobs.db-latch"]) == (0o640, 0o644)


async def test_a_latch_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "jobs.db-latch").symlink_to(elsewhere)
    store = SqliteBackend(tmp_path / "jobs.db")
    await store.open()
    await store.insert([row(1)])
    await store.close()
    assert not elsewhere.exists()


async def test_a_link_of_one_s_own_leads_to_the_store(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "jobs.db")
    store = SqliteBackend(tmp_path / "link.db")
    await store.open()
    await store.close()
    assert (tmp_path / "jobs.db").stat().st_mode & 0o777 == 0o600


def test_a_link_that_another_user_has_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "jobs.db"
    link.symlink_to(tmp_path / "elsewhere")
    if os.geteuid() == 0:
        os.lchown(link, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match="symbolic link that another user"):
        files.refuse_planted_link(str(link))
