"""``headrace doctor`` on a store in Valkey: what survives its end, how much room there is, and what its user lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from servers.valkey import Valkey, free_ports

from headrace.backends.redis.checks import examine
from tests.cli.conftest import Run
from tests.cli.test_checks import RunJson, findings

_USUAL = {
    "maxmemory": 0, "maxmemory-policy": "noeviction", "appendonly": "no", "appendfsync": "everysec", "save": "",
}  # fmt: skip


@pytest.fixture(scope="module")
def shared() -> Iterator[Valkey]:
    valkey = Valkey()
    valkey.start()
    yield valkey
    valkey.close()


@pytest.fixture
def valkey(shared: Valkey) -> Valkey:
    """A server that the test may set up as it likes."""
    for name, value in _USUAL.items():
        shared.call("CONFIG", "SET", name, value)
    return shared


def set_up(valkey: Valkey, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        valkey.call("CONFIG", "SET", name, value)


def test_doctor_tells_of_the_server(valkey: Valkey, run: Run, run_json: RunJson) -> None:
    report = run_json("doctor", "--url", valkey.url())
    assert report["ok"]
    version = valkey.info("server")["valkey_version"]
    assert findings(report, "server") == [("ok", f"valkey {version}, a primary alone, 0 replica(s)")]
    assert findings(report, "eviction") == [("ok", "maxmemory-policy noeviction: the server throws nothing away")]
    text = run("doctor", "--url", valkey.url()).stdout
    assert "ok    server: valkey" in text
    assert "warn  persistence: " in text


@pytest.mark.parametrize(
    ("settings", "level", "words"),
    [
        ({"appendonly": "no"}, "warn", "neither append-only file nor snapshots: nothing survives the server"),
        (
            {"appendonly": "no", "save": "3600 1"},
            "warn",
            "a crash takes all that was acknowledged since the",
        ),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "ok", "appendfsync everysec: a crash may take what was"),
        (
            {"appendonly": "yes", "appendfsync": "always"},
            "ok",
            "appendfsync always: what was acknowledged is on",
        ),
        ({"appendonly": "yes", "appendfsync": "no"}, "warn", "appendfsync no: a crash of the machine may take"),
    ],
)
def test_doctor_tells_what_survives_the_end_of_the_server(
    valkey: Valkey, run_json: RunJson, settings: dict[str, str], level: str, words: str
) -> None:
    set_up(valkey, settings)
    report = run_json("doctor", "--url", valkey.url())
    [found] = [one for one in report["findings"] if one["check"] == "persistence"]
    assert found["level"] == level
    assert words in found["what"]
    assert ("CONFIG SET append" in found["advice"]) == (level == "warn")


def test_doctor_tells_how_much_room_there_is(valkey: Valkey, run_json: RunJson) -> None:
    [(level, what)] = findings(run_json("doctor", "--url", valkey.url()), "memory")
    assert (level, "no maxmemory" in what) == ("warn", True)
    set_up(valkey, {"maxmemory": str(1 << 30)})
    [(level, what)] = findings(run_json("doctor", "--url", valkey.url()), "memory")
    assert (level, "of maxmemory 1.0 GiB used" in what) == ("ok", True)
    set_up(valkey, {"maxmemory": str(int(valkey.info("memory")["used_memory"]) + 50_000)})
    [(level, _)] = findings(run_json("doctor", "--url", valkey.url()), "memory")
    assert level == "warn"


def test_doctor_finds_a_server_that_throws_jobs_away(valkey: Valkey, run: Run) -> None:
    set_up(valkey, {"maxmemory-policy": "allkeys-lru"})
    text = run("doctor", "--url", valkey.url(), code=1).stdout
    assert "fail  store: " in text
    assert "expected maxmemory-policy noeviction, got allkeys-lru" in text
    assert "CONFIG SET maxmemory-policy noeviction" in text


def test_doctor_says_what_it_may_not_see(valkey: Valkey, run_json: RunJson) -> None:
    set_up(valkey, {"appendonly": "yes"})
    valkey.call("ACL", "SETUSER", "jobs", "reset", "on", ">hunter2", "~*", "&*", "+@all", "-config")
    report = run_json("doctor", "--url", f"redis://jobs:hunter2@127.0.0.1:{valkey.port}/0")
    assert findings(report, "persistence") == [("ok", "append-only file; this user may not see more")]
    assert "hunter2" not in str(report)


def test_doctor_tells_who_is_refused_and_shows_no_password(valkey: Valkey, run: Run) -> None:
    text = run("doctor", "--url", f"redis://jobs:hunter3@127.0.0.1:{valkey.port}/0", code=1).output
    assert "Look at the user and password in the URL" in text
    assert "hunter3" not in text


def test_doctor_finds_nobody_there(run: Run) -> None:
    [port] = free_ports(1)
    text = run("doctor", "--url", f"redis://127.0.0.1:{port}/0", code=1).stdout
    assert f"fail  store: redis://127.0.0.1:{port}/0 cannot serve just now" in text


INFO: dict[str, str] = {
    "redis_version": "6.2.14", "role": "master", "connected_slaves": "2", "cluster_enabled": "1", "aof_enabled": "1",
    "aof_last_write_status": "ok", "rdb_last_bgsave_status": "ok", "maxmemory_policy": "noeviction",
    "used_memory": "512", "maxmemory": "1024",
}  # fmt: skip
EVERYSEC = {"appendfsync": "everysec", "save": ""}


def levels(found: list[Any], check: str) -> list[str]:
    return [fact.level for fact in found if fact.check == check]


def test_what_a_server_tells_of_itself() -> None:
    found = examine(INFO, EVERYSEC)
    assert {fact.level for fact in found} == {"ok"}
    assert found[0].what == "redis 6.2.14, a primary in a cluster, 2 replica(s)"
    assert levels(examine(INFO | {"aof_last_write_status": "err"}, EVERYSEC), "persistence") == ["ok", "fail"]
    assert levels(examine(INFO | {"rdb_last_bgsave_status": "err"}, EVERYSEC), "persistence") == ["ok", "warn"]
    assert levels(examine(INFO | {"maxmemory_policy": "volatile-lru"}, EVERYSEC), "eviction") == ["fail"]
    assert levels(examine(INFO | {"used_memory": "1000"}, EVERYSEC), "memory") == ["warn"]
    assert levels(examine(INFO | {"aof_enabled": "0"}, {}), "persistence") == ["warn"]
