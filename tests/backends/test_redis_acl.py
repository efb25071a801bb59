"""Who may do what on Valkey: a user with its keys, its channels and the commands that are needed, and no more."""

from __future__ import annotations

import asyncio
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from servers.valkey import Valkey
from servers.valkey_cluster import ValkeyCluster

from headrace import App, EventKind
from headrace.backends.redis import rights, subscription
from headrace.errors import ConfigError
from headrace.seam.records import Cancel, Selector
from headrace.testing.conformance.base import T0, row
from tests.valkey import every_operation, opened
from tests.worker.conftest import FAST, Told, working

COMMANDS = [name.lower().replace(" ", "|") for name in rights.COMMANDS]
"""All that Headrace asks of one server, or of one behind sentinels, as an ACL names it."""
RARE = {"setex", "zrank", "client|unblock", "ping", "rpush", "hgetall", "zscan"}
"""Of these: those that one round may do without."""
CLUSTER = {"cluster|slots"}
"""What a cluster is asked besides."""
BETWEEN_SHARDS = {"hkeys", "lpop", "lrange"}
"""What only the scripts of a cluster do."""
PASSWORD = "p@ss:w/o?r#d %41"


def rules(prefix: str, commands: list[str] = COMMANDS) -> list[str]:
    """As in the manual."""
    own = f"~{prefix}{{*", "resetchannels", f"&{prefix}:*"
    return ["reset", "on", f">{PASSWORD}", *own, *(f"+{command}" for command in commands)]


def url(valkey: Valkey, user: str = "jobs", password: str = PASSWORD, prefix: str = "headrace") -> str:
    return f"redis://{user}:{quote(password, safe='')}@127.0.0.1:{valkey.port}/0?prefix={prefix}"


@pytest.fixture(scope="module")
def shared() -> Iterator[Valkey]:
    valkey = Valkey()
    valkey.start()
    yield valkey
    valkey.close()


@pytest.fixture
def own(shared: Valkey) -> Valkey:
    """A blank server whose users the test may change."""
    for command in (("FLUSHALL",), ("SCRIPT", "FLUSH"), ("ACL", "SETUSER", "jobs", *rules("headrace"))):
        shared.call(*command)
    return shared


async def refusal(where: str) -> str:
    """What somebody is told who may not open the store."""
    with pytest.raises(ConfigError) as told:
        async with opened(where):
            pass
    return "".join(traceback.format_exception(told.value))


async def test_that_user_may_do_all_that_there_is_to_do_and_no_more(own: Valkey) -> None:
    """Every right that is given for nothing is one for an intruder."""
    own.call("CONFIG", "RESETSTAT")
    async with opened(url(own)) as store:
        await every_operation(store)
    used = {name.removeprefix("cmdstat_") for name in own.info("commandstats")}
    assert used - {"config|resetstat", "auth"} <= set(COMMANDS)
    assert set(COMMANDS) - used <= RARE | BETWEEN_SHARDS
    assert all(key.startswith(b"headrace") for key in own.call("KEYS", "*"))


async def test_nothing_but_its_own_keys_and_channels(own: Valkey) -> None:
    own.call("ACL", "SETUSER", "jobs", *rules("mine"))
    own.call("SET", "theirs", "secret")
    async with opened(url(own, prefix="mine")) as store:
        await every_operation(store)
    assert "Add to its ACL: ~theirs{* &theirs:*" in await refusal(url(own, prefix="theirs"))


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_right_that_is_missing_is_told_before_anything_is_done(own: Valkey, command: str) -> None:
    """In the middle of a script it would be too late: what came before stays done."""
    own.call("ACL", "SETUSER", "jobs", *rules("headrace", [one for one in COMMANDS if one != command]))
    told = await refusal(url(own))
    assert re.search(rf"(?i)[+']{re.escape(command)}\b", told)
    assert "ACL" in told
    assert set(own.call("KEYS", "*")) <= {b"headrace{jobs}:v"}


@pytest.mark.parametrize("missing", ["~headrace{*", "&headrace:*"])
async def test_without_its_keys_or_channels_it_is_told_what_to_do(own: Valkey, missing: str) -> None:
    own.call("ACL", "SETUSER", "jobs", *(rule for rule in rules("headrace") if rule != missing))
    told = await refusal(url(own))
    assert re.search(rf"refuses this user: .*NOPERM.*Add to its ACL: {re.escape(missing)}\n", told)


async def test_a_user_who_may_only_read_the_keys_is_told_what_to_do(own: Valkey) -> None:
    own.call("ACL", "SETUSER", "jobs", *(rule.replace("~", "%R~") for rule in rules("headrace")))
    assert re.search(r"Add to its ACL: ~headrace\{\*\n", await refusal(url(own)))


@pytest.mark.parametrize(("user", "password"), [("jobs", "wrong-hunter2"), ("nobody", PASSWORD), ("jobs", "p@ss")])
async def test_a_wrong_password_is_told_and_not_shown(own: Valkey, user: str, password: str) -> None:
    told = await refusal(url(own, user, password))
    assert re.search(r"WRONGPASS.*Check the user and password in the URL", told)
    assert ".. " not in told
    assert password not in told
    assert quote(password, safe="") not in told


async def test_a_server_that_wants_a_password_says_so() -> None:
    valkey = Valkey(None, {"requirepass": PASSWORD})
    valkey.start()
    try:
        assert re.search(r"NOAUTH.*Check the user and password in the URL", await refusal(valkey.url()))
        for login in (f":{quote(PASSWORD, safe='')}", f"default:{quote(PASSWORD, safe='')}"):
            async with opened(f"redis://{login}@127.0.0.1:{valkey.port}") as store:
                await store.stats()
    finally:
        valkey.close()


async def test_a_user_whose_rights_are_taken_away_meanwhile_is_told(own: Valkey) -> None:
    async with opened(url(own)) as store:
        await store.stats()
        own.call("ACL", "SETUSER", "jobs", "-evalsha", "-eval")
        with pytest.raises(ConfigError, match=r"NOPERM.*ACL"):
            await store.stats()
        own.call("ACL", "SETUSER", "jobs", "+evalsha", "+eval")
        await store.stats()


async def test_whoever_waits_for_hints_may_wait_for_long(own: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is asked now and then whether it is still there."""
    monkeypatch.setattr(subscription, "_QUIET", 0.05)
    async with opened(url(own)) as store:
        assert store.hints is not None
        async with store.hints.listen(["inbox:me"]) as heard:
            await store.insert([row(1, reply_to="me")], T0)
            next_one = asyncio.ensure_future(anext(heard))
            async with asyncio.timeout(60):
                while "cmdstat_ping" not in own.info("commandstats"):
                    await asyncio.sleep(0.02)
            await store.alter(Selector(ids=[row(1).id]), Cancel(), T0)
            assert (await asyncio.wait_for(next_one, 60)).topic == "inbox:me"


async def test_a_worker_outlives_a_user_that_is_refused_for_a_while(own: Valkey) -> None:
    """Users are also changed by mistake, for a moment: who was let in before waits, as in any outage."""
    app = App(url(own), worker=FAST | {"name": "random", "lease": "2s"}, patience="300ms")
    told = Told()
    app.observe(told)

    @app.task(name="work", queue="q")
    async def work() -> None: ...

    async with working(app):
        await work.enqueue()
        await told.wait_for(EventKind.COMPLETED)
        own.call("ACL", "SETUSER", "jobs", "off")
        own.call("CLIENT", "KILL", "USER", "jobs")
        await told.wait_for(EventKind.STORE_AWAY)
        own.call("ACL", "SETUSER", "jobs", "on")
        await told.wait_for(EventKind.STORE_BACK)
        await work.enqueue()
        await told.wait_for(EventKind.COMPLETED, 2)


async def test_the_same_user_on_a_cluster() -> None:
    cluster = ValkeyCluster()
    try:
        for node in cluster.nodes:
            node.call("ACL", "SETUSER", "jobs", *rules("headrace", [*COMMANDS, *CLUSTER]))
            node.call("CONFIG", "RESETSTAT")
        login = f"jobs:{quote(PASSWORD, safe='')}@"
        async with opened(cluster.url().replace("://", f"://{login}")) as store:
            await every_operation(store)
        used = {name.removeprefix("cmdstat_") for node in cluster.nodes for name in node.info("commandstats")}
        assert used >= CLUSTER
        assert used - {"config|resetstat", "auth"} <= {*COMMANDS, *CLUSTER}
    finally:
        cluster.close()


def test_the_docs_name_these_rights() -> None:
    text = (Path(__file__).parents[2] / "docs" / "howto" / "valkey.md").read_text()
    [block] = [part for part in text.split("```") if part.lstrip().startswith("+blpop")]
    assert sorted(block.split()) == sorted(f"+{name.lower().replace(' ', '|')}" for name in rights.COMMANDS)
