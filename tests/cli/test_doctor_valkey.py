"""``headrace doctor`` on a store in Valkey: what survives its end, how much room there is, and what its user lacks."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.process import free_ports
from servers.sentinel import Sentinel
from servers.valkey import Valkey
from servers.valkey_cluster import ValkeyCluster

from headrace.backends.redis.checks import examine, slow_scripts
from headrace.backends.redis.scripts import DIGESTS, SCRIPTS
from tests.cli.conftest import Process, Run
from tests.cli.test_checks import RunJson, findings

Start = Callable[..., Process]
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


def write_app(project: Path, url: str) -> None:
    """``mine.py`` with an app on this store."""
    task = "@app.task\nasync def nothing() -> None: ...\n"
    (project / "mine.py").write_text(f"from headrace import App\napp = App({url!r})\n{task}")


def test_doctor_tells_of_the_server(valkey: Valkey, run: Run, run_json: RunJson) -> None:
    report = run_json("doctor", "--url", valkey.url())
    assert report["ok"]
    version = valkey.info("server")["valkey_version"]
    assert findings(report, "server") == [("ok", f"valkey {version}, a primary, no replica")]
    assert findings(report, "eviction") == [("ok", "maxmemory-policy noeviction: the server evicts nothing")]
    text = run("doctor", "--url", valkey.url()).stdout
    assert "ok    server: valkey" in text
    assert "warn  persistence: " in text


def test_doctor_tells_of_scripts_that_took_long() -> None:
    """By the log of the server, in which others stand too."""
    took = 60_000
    call = b"EVALSHA", SCRIPTS["claim"].digest.encode(), b"1"
    log = [[1, 2, took, [*call], b"", b""], [2, 3, 40_000, [b"EVALSHA", SCRIPTS["finish"].digest.encode()], b"", b""]]
    [fact] = slow_scripts([*log, [3, 4, 10**6, [b"KEYS"], b"", b""]], DIGESTS)
    assert (fact.level, fact.check, fact.what) == ("warn", "scripts", "slow lately, according to SLOWLOG: claim 60 ms")


@pytest.mark.parametrize(
    ("settings", "level", "words"),
    [
        ({"appendonly": "no"}, "warn", "neither append-only file nor snapshots: nothing survives a restart"),
        (
            {"appendonly": "no", "save": "3600 1"},
            "warn",
            "a crash loses all that was acknowledged since the",
        ),
        (
            {"appendonly": "yes", "appendfsync": "everysec"},
            "ok",
            "appendfsync everysec: a crash of the machine may lose what was acknowledged in the last two seconds; a",
        ),
        (
            {"appendonly": "yes", "appendfsync": "always"},
            "ok",
            "appendfsync always: what was acknowledged is on",
        ),
        ({"appendonly": "yes", "appendfsync": "no"}, "warn", "appendfsync no: a crash of the machine may lose"),
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
    set_up(valkey, {"maxmemory": str(2 << 30)})
    [(level, what)] = findings(run_json("doctor", "--url", valkey.url()), "memory")
    assert (level, "of maxmemory 2.0 GiB used" in what) == ("ok", True)
    set_up(valkey, {"maxmemory": str(int(valkey.info("memory")["used_memory"]) + 50_000)})
    [(level, _)] = findings(run_json("doctor", "--url", valkey.url()), "memory")
    assert level == "warn"


def test_doctor_compares_the_room_with_what_retention_may_keep(valkey: Valkey, run: Run, run_json: RunJson) -> None:
    set_up(valkey, {"maxmemory": str(900 << 20)})
    [(level, what)] = findings(run_json("doctor", "--url", valkey.url()), "memory")
    assert (level, "retention may keep 832.0 MiB of ended jobs" in what) == ("warn", True)
    assert "HEADRACE_RETENTION__COMPLETED__BYTES" in run("doctor", "--url", valkey.url()).stdout
    less = {f"HEADRACE_RETENTION__{place}__BYTES": str(1 << 20) for place in ("COMPLETED", "CANCELLED", "FAILED")}
    [(level, _)] = findings(run_json("doctor", "--url", valkey.url(), env=less), "memory")
    assert level == "ok"


def test_an_enqueue_that_finds_no_memory_says_so(valkey: Valkey, run: Run) -> None:
    set_up(valkey, {"maxmemory": "1000000"})
    told = run("enqueue", "jobs.hello", "--url", valkey.url(), code=75).stderr
    assert "is full: the server has reached its maxmemory. Nothing was stored" in told
    assert "cause: the server has reached its maxmemory; this is not about a disk" in told
    assert "HEADRACE_RETENTION__COMPLETED__COUNT" in told
    for noise in ("script", "@user", "..", "OOM"):
        assert noise not in told


def test_a_worker_warns_of_a_server_that_keeps_nothing(valkey: Valkey, start: Start, project: Path) -> None:
    write_app(project, valkey.url())
    quick = ("worker", "mine", "--burst", "--log-format", "json")
    loud = json.loads(start(*quick).text('"store redis://'))
    assert loud["level"] == "WARNING"
    assert "neither append-only file nor snapshots: nothing survives a restart -> CONFIG SET append" in loud["message"]
    set_up(valkey, {"appendonly": "yes"})
    quiet = json.loads(start(*quick).text('"store redis://'))
    assert quiet["level"] == "INFO"
    assert "append-only file, appendfsync everysec: a crash of the machine may lose" in quiet["message"]


SENTINELS = "redis+sentinel://ada:hunter2@127.0.0.1:{port}/0?master=jobs&sentinel_password=hunter3"


def test_no_command_shows_a_password(run: Run, start: Start, project: Path) -> None:
    """Whether it is that of the server or of the sentinels."""
    [port] = free_ports(1)
    url = SENTINELS.format(port=port)
    write_app(project, url)
    worker = start("--debug", "worker", "mine", "--log-format", "json")
    assert worker.ended() == 75
    told = [
        run("doctor", "--url", url, code=1).output,
        run("doctor", "--url", url, "--json", code=1).output,
        run("health", "--url", url, code=75).output,
        run("health", "--url", url, "--json", code=75).output,
        run("job", "list", "--url", url, code=75).output,
        run("--debug", "job", "list", "--url", url, code=75).output,
        run("migrate", "status", "--url", url).output,
        "".join(worker.lines),
    ]
    for text in told:
        assert "hunter" not in text
        assert f"redis+sentinel://***@127.0.0.1:{port}" in text


def test_a_worker_shows_no_password_of_the_sentinels(start: Start, project: Path) -> None:
    servers = Sentinel(down_after=30_000)
    try:
        servers.sentinels[0].call("ACL", "SETUSER", "default", "resetpass", ">hunter3")
        url = f"{servers.url()}&sentinel_password=hunter3"
        write_app(project, url)
        for format in ("text", "json"):
            worker = start("worker", "mine", "--burst", "--log-format", format)
            assert "sentinel_password=***" in worker.text("store redis+sentinel://")
            assert worker.ended() == 0
            assert "hunter3" not in "".join(worker.lines)
    finally:
        servers.close()


def test_doctor_names_the_servers_of_a_cluster(run_json: RunJson) -> None:
    cluster = ValkeyCluster(settings={"cluster-node-timeout": "15000"})
    try:
        report = run_json("doctor", "--url", cluster.url())
        named = {f"127.0.0.1:{node.port}" for node in cluster.nodes}
        for check in ("server", "persistence", "eviction", "memory"):
            assert {what.partition(": ")[0] for _, what in findings(report, check)} <= named
            assert len(findings(report, check)) > 1
    finally:
        cluster.close()


def test_doctor_on_a_package_that_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("hiredis", "headrace.backends.redis"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hiredis", None)
    told = run("doctor", "--url", "redis://db", code=1).stdout
    assert "pip install 'headrace[redis]'" in told
    assert "--url" not in told
    told = run("job", "list", "--url", "redis://db", code=2).stderr
    assert "pip install 'headrace[redis]'" in told
    assert "cause:" not in told


def test_a_store_of_another_release_is_told_what_to_do(valkey: Valkey, run: Run) -> None:
    valkey.call("FLUSHALL")
    valkey.call("SET", "headrace{jobs}:v", "99")
    try:
        told = run("job", "list", "--url", valkey.url(), code=1).stderr
    finally:
        valkey.call("FLUSHALL")
    assert "the store has the layout 99" in told
    assert "migrate" not in told


def test_a_login_that_is_turned_down_ends_like_a_store_that_is_away(valkey: Valkey, run: Run) -> None:
    url = f"redis://jobs:hunter3@127.0.0.1:{valkey.port}/0"
    told = run("job", "list", "--url", url, code=75).stderr
    assert "Check the user and password in the URL" in told
    assert "cause:" not in told
    assert ".." not in told


def test_doctor_finds_a_server_that_throws_jobs_away(valkey: Valkey, run: Run) -> None:
    set_up(valkey, {"maxmemory-policy": "allkeys-lru"})
    assert "->" not in run("doctor", "--url", valkey.url(), code=1).stdout.partition("fail  store: ")[2]
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
    assert "Check the user and password in the URL" in text
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
    assert found[0].what == "redis 6.2.14, a primary in a cluster, 2 replicas"
    one = examine(INFO | {"connected_slaves": "1", "cluster_enabled": "0"}, EVERYSEC)
    assert one[0].what == "redis 6.2.14, a primary, 1 replica"
    assert levels(examine(INFO | {"aof_last_write_status": "err"}, EVERYSEC), "persistence") == ["ok", "fail"]
    assert levels(examine(INFO | {"rdb_last_bgsave_status": "err"}, EVERYSEC), "persistence") == ["ok", "warn"]
    assert levels(examine(INFO | {"maxmemory_policy": "volatile-lru"}, EVERYSEC), "eviction") == ["fail"]
    assert levels(examine(INFO | {"used_memory": "1000"}, EVERYSEC), "memory") == ["warn"]
    assert levels(examine(INFO | {"aof_enabled": "0"}, {}), "persistence") == ["warn"]
