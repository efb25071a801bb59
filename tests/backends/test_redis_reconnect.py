"""Valkey connections that are made again, given up or refused: whoever waits is told, and work goes on."""

from __future__ import annotations

import asyncio
import ssl
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from servers.certificates import Certificates
from servers.tls import TlsFront
from servers.valkey import Refused, Valkey

from headrace import App, EventKind, JobState
from headrace.api.connection import open_backend
from headrace.backends.redis import connection, connections, hints, subscription
from headrace.backends.redis.connection import Connection
from headrace.errors import ConfigError, Unavailable
from headrace.seam.protocol import Backend, Hints
from headrace.seam.records import Claim, Hint, InsertStatus
from headrace.testing.conformance.base import LEASE, T0, row
from tests.valkey import opened, server, stores
from tests.worker.conftest import FAST, Told, working

SOON = 60.0
"""Seconds within which all that is waited for here must happen; it takes a fraction of one."""
SECRET = "hunter2"


async def until(done: Callable[[], Any]) -> None:
    async with asyncio.timeout(SOON):
        while not done():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def served(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], **options: Any
) -> AsyncIterator[int]:
    """The port of something that is no server but answers; it hangs up at the end."""
    answering: dict[asyncio.Task[Any] | None, asyncio.StreamWriter] = {}

    async def serve(said: asyncio.StreamReader, line: asyncio.StreamWriter) -> None:
        answering[asyncio.current_task()] = line
        with closing(line), suppress(ConnectionError):  # whoever asks may reset the connection
            await answer(said, line)

    async with await asyncio.start_server(serve, "127.0.0.1", **options) as door:
        yield door.sockets[0].getsockname()[1]
    for link in answering.values():
        link.close()
        with suppress(OSError):
            await link.wait_closed()
    await asyncio.gather(*(task for task in answering if task is not None))


def hang_up(valkey: Valkey) -> None:
    """On everybody."""
    for kind in ("normal", "pubsub"):
        valkey.call("CLIENT", "KILL", "TYPE", kind)


@pytest.fixture
def own() -> Iterator[Valkey]:
    """A server that the test may set up, and let stand still."""
    valkey = Valkey()
    valkey.start()
    yield valkey
    valkey.close()


# -- sentinels that know no primary


class Oracle:
    """A sentinel that names the primary, or says that it knows none."""

    def __init__(self, primary: Valkey) -> None:
        self._primary = primary
        self.knows = True
        self.shrugs = 0
        """How often it said so."""

    @asynccontextmanager
    async def url(self) -> AsyncIterator[str]:
        """Where one asks it."""
        async with served(self._answer) as port:
            yield f"redis+sentinel://127.0.0.1:{port}/0?master=jobs"

    async def _answer(self, questions: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        port = str(self._primary.port)
        while await questions.read(1_000):
            self.shrugs += not self.knows
            known = f"*2\r\n$9\r\n127.0.0.1\r\n${len(port)}\r\n{port}\r\n"
            answers.write(known.encode() if self.knows else b"*-1\r\n")


@pytest_asyncio.fixture
async def oracle(tmp_path: Path) -> Oracle:
    stores.connect(tmp_path)
    return Oracle(server())


async def test_sentinels_that_know_no_primary_for_a_moment_end_no_worker(oracle: Oracle) -> None:
    """The job that has ended meanwhile is recorded, and was run once."""
    started, enough, runs = asyncio.Event(), asyncio.Event(), []
    async with oracle.url() as where:
        app = App(where, worker=FAST | {"name": "random", "lease": "20s"})
        told = Told()
        app.observe(told)

        @app.task(name="slow", queue="q")
        async def slow() -> str:
            runs.append(1)
            started.set()
            await enough.wait()
            return "done"

        async with working(app):
            job = await slow.enqueue()
            await asyncio.wait_for(started.wait(), SOON)
            oracle.knows = False
            hang_up(server())
            enough.set()
            await until(lambda: oracle.shrugs >= 5)
            assert EventKind.COMPLETED not in told.kinds()
            oracle.knows = True
            await told.wait_for(EventKind.COMPLETED)
            assert await job.result() == "done"
            assert (await app.get(job.id)).state is JobState.COMPLETED
    assert len(runs) == 1


async def test_sentinels_that_know_no_primary_any_more_are_an_outage(oracle: Oracle) -> None:
    """Whoever opens the store has a setting to look at; whoever has worked with it waits."""
    async with oracle.url() as where, opened(where) as store:
        oracle.knows = False
        hang_up(server())
        assert isinstance(await refusal_of(store), Unavailable)
        with pytest.raises(ConfigError, match="know no primary") as told:
            async with opened(where):
                pass
        assert not isinstance(told.value, Unavailable)
        oracle.knows = True
        await store.insert([row(1)], T0)


async def refusal_of(store: Backend) -> Exception:
    """Why no new connection is made."""
    async with asyncio.timeout(SOON):
        while True:
            try:
                await store.stats(T0)
            except ConfigError as error:
                return error
            except Unavailable:
                pass  # the old connection has ended


async def say_nothing(said: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Until the other side hangs up."""
    while await said.read(1_000):
        pass


# -- being turned down


async def test_a_user_who_is_turned_down_later_has_an_outage(own: Valkey) -> None:
    own.call("ACL", "SETUSER", "jobs", "on", f">{SECRET}", "~*", "&*", "+@all")
    where = f"redis://jobs:{SECRET}@127.0.0.1:{own.port}/0"
    async with opened(where) as store:
        own.call("ACL", "SETUSER", "jobs", "resetpass", ">another")
        own.call("CLIENT", "KILL", "USER", "jobs")
        assert isinstance(await refusal_of(store), Unavailable)
        own.call("ACL", "SETUSER", "jobs", f">{SECRET}")
        await store.insert([row(1)], T0)
    assert own.call("EXISTS", "headrace{jobs}:j") == 1


async def test_a_certificate_that_is_not_trusted_later_is_an_outage(own: Valkey, tmp_path: Path) -> None:
    papers, others = Certificates(tmp_path), Certificates(tmp_path)
    front = TlsFront(own.port, *papers.issue("valkey", "IP:127.0.0.1"))
    strangers = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    strangers.load_cert_chain(*others.issue("valkey", "IP:127.0.0.1"))
    try:
        async with opened(f"rediss://127.0.0.1:{front.port}/0?ca={papers.ca}") as store:
            await asyncio.to_thread(front.close)
            async with served(say_nothing, port=front.port, ssl=strangers):
                refused = await refusal_of(store)
            assert "TLS" in str(refused)
            assert isinstance(refused, Unavailable)
    finally:
        front.close()


class WithoutAuth(Valkey):
    """A server that knows no AUTH, and repeats what it does not understand."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--rename-command", "AUTH", ""]


@pytest.mark.parametrize("login", [f":{SECRET}", f"ada:{SECRET}"])
async def test_a_password_is_shown_to_nobody_though_the_server_repeats_it(login: str) -> None:
    valkey = WithoutAuth()
    valkey.start()
    try:
        with pytest.raises(Refused, match=SECRET):
            valkey.call("AUTH", *login.strip(":").split(":"))
        with pytest.raises(ConfigError) as told:
            async with opened(f"redis://{login}@127.0.0.1:{valkey.port}/0"):
                pass
        assert "AUTH" in str(told.value)
        assert SECRET not in "".join(traceback.format_exception(told.value))
    finally:
        valkey.close()


# -- giving up


@pytest.mark.parametrize("login", [f":{SECRET}@", ""], ids=["at the login", "at the look at its role"])
async def test_a_caller_that_waits_for_a_connection_is_told_when_the_store_is_closed(login: str) -> None:
    """As of an outage; nobody has cancelled him. And the store has hung up."""
    reached, left = asyncio.Event(), asyncio.Event()

    async def listen(said: asyncio.StreamReader, line: asyncio.StreamWriter) -> None:
        await said.readline()
        reached.set()
        with suppress(ConnectionError):
            await say_nothing(said, line)
        left.set()

    async with served(listen) as port:
        store = open_backend(f"redis://{login}127.0.0.1:{port}/0")
        calls = [asyncio.ensure_future(call) for call in (store.open(), store.stats(T0), store.insert([row(1)], T0))]
        await asyncio.wait_for(reached.wait(), SOON)
        assert not any(call.done() for call in calls)
        await store.close()
        await asyncio.wait_for(left.wait(), SOON)
        answers = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), SOON)
        assert [type(answer) for answer in answers] == [Unavailable] * 3
        with pytest.raises(Unavailable, match="closed"):
            await store.stats(T0)


async def test_a_caller_who_gives_up_leaves_the_others_their_answers(
    own: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the claim took is known to its holder; those who come later have a new connection."""
    monkeypatch.setattr(connection, "_DOUBT", 0.05)
    async with opened(own.url()) as store:
        await store.insert([row(n) for n in range(5)], T0)
        connections = int(own.info("stats")["total_connections_received"])
        own.freeze()
        try:
            claiming = asyncio.ensure_future(store.claim(Claim("w1", ("q",), 5, LEASE), T0))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(store.stats(T0), 0.2)
            later = asyncio.ensure_future(store.stats(T0))
        finally:
            own.thaw()
        assert len((await asyncio.wait_for(claiming, SOON)).jobs) == 5
        [queue] = (await asyncio.wait_for(later, SOON)).queues
        assert (await store.stats(T0)).queues[0].running == 5
        assert queue.running == 5
        assert int(own.info("stats")["total_connections_received"]) == connections + 2


# -- listening to a server that stands still


def hints_of(store: Backend) -> Hints:
    assert store.hints is not None
    return store.hints


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever listens to channels asks soon and waits little; what else is silent is not noticed."""
    for name, value in {"_QUIET": 0.2, "_ANSWER": 0.3, "_PATIENCE": 3_600.0}.items():
        monkeypatch.setattr(subscription, name, value)
    for name, value in {"_LEAVING": 0.1, "_PATIENCE": 3_600.0}.items():
        monkeypatch.setattr(hints, name, value)


@pytest.mark.usefixtures("hasty")
async def test_a_listener_whom_nobody_answers_is_refused(own: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe = Connection.subscribe

    def at_a_bad_time(self: Connection, heard: Callable[[Any], None], channels: list[bytes]) -> None:
        own.freeze()
        subscribe(self, heard, channels)

    monkeypatch.setattr(Connection, "subscribe", at_a_bad_time)
    async with opened(own.url()) as store:
        with pytest.raises(Unavailable, match="no answer"):
            async with asyncio.timeout(SOON), hints_of(store).listen(["inbox:me"]):
                pass
        own.thaw()


async def test_a_listener_who_is_not_let_in_is_refused(own: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "_PATIENCE", 0.3)
    async with opened(own.url()) as store:
        own.freeze()
        with pytest.raises(Unavailable, match=r"no answer for 0\.3 seconds"):
            async with asyncio.timeout(SOON), hints_of(store).listen(["queue:q", "inbox:me"]):
                pass
        own.thaw()


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("topics", [["queue:q", "inbox:me"], ["inbox:me"]], ids=" and ".join)
async def test_a_listener_notices_that_the_server_stands_still(topics: list[str], own: Valkey) -> None:
    """By its channels, also where it waits for signals of a queue."""
    async with opened(own.url()) as store:

        async def wait() -> None:
            async with asyncio.timeout(SOON), hints_of(store).listen(topics) as heard:
                waiting = asyncio.ensure_future(anext(heard))
                await until(lambda: int(own.info("clients")["blocked_clients"]) == len(topics) - 1)
                own.freeze()
                await waiting

        with pytest.raises(Unavailable, match="no answer on the connection for hints"):
            await wait()
        own.thaw()


@pytest.mark.usefixtures("hasty")
async def test_a_server_that_has_nothing_to_say_is_asked_and_kept(own: Valkey) -> None:
    async with opened(own.url()) as store, hints_of(store).listen(["queue:q", "inbox:me"]) as heard:
        waiting = asyncio.ensure_future(anext(heard))
        await until(lambda: pings(own) >= 3)
        await store.insert([row(1)], T0)
        assert await asyncio.wait_for(waiting, SOON) == Hint("queue:q")


def pings(valkey: Valkey) -> int:
    told = valkey.info("commandstats").get("cmdstat_ping", "calls=0,")
    return int(told.removeprefix("calls=").partition(",")[0])


# -- servers that stand still, restart or load


async def test_a_server_that_stands_still_is_given_up_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LIMIT", 1.0)
    valkey = Valkey()
    valkey.start()
    backend = open_backend(valkey.url())
    try:
        await backend.open()
        valkey.freeze()
        with pytest.raises(Unavailable, match="no answer for 1 seconds"):
            await backend.stats(T0)
        valkey.thaw()
        assert (await backend.insert([row(1)], T0))[0].status is InsertStatus.NEW
    finally:
        await backend.close()
        valkey.close()


async def test_a_restart_is_followed() -> None:
    """By the same backend, with an empty cache of scripts on the other side; what was acknowledged is there."""
    valkey = Valkey(None, {"appendonly": "yes", "appendfsync": "always"})
    valkey.start()
    backend = open_backend(valkey.url())
    try:
        await backend.open()
        for number in range(5):
            assert (await backend.insert([row(number)], T0))[0].status is InsertStatus.NEW
            valkey.kill()
            with pytest.raises(Unavailable):
                await backend.stats(T0)
            valkey.start()
            [queue] = (await backend.stats(T0)).queues
            assert queue.available == number + 1
        assert len((await backend.claim(Claim("w1", ("q",), 10, LEASE), T0)).jobs) == 5
    finally:
        await backend.close()
        valkey.close()


async def test_a_server_that_still_loads_its_file_is_waited_for() -> None:
    """It answers, and refuses everything for a while."""
    valkey = Valkey(
        None, {"appendonly": "yes", "key-load-delay": "1000", "loading-process-events-interval-bytes": "1024"}
    )
    valkey.start()
    try:
        valkey.call("CONFIG", "SET", "key-load-delay", 0)
        for number in range(2_000):
            valkey.call("SET", f"k{number}", "v" * 100)
        valkey.call("BGREWRITEAOF")
        async with asyncio.timeout(60):
            while valkey.info("persistence")["aof_rewrite_in_progress"] == "1":
                await asyncio.sleep(0.01)
        valkey.kill()
        starting = asyncio.ensure_future(asyncio.to_thread(valkey.start))
        backend = open_backend(valkey.url())
        refused = 0
        async with asyncio.timeout(60):
            while True:
                try:
                    await backend.open()
                    break
                except Unavailable as error:
                    refused += "LOADING" in str(error)
                    await asyncio.sleep(0.01)
        await starting
        await backend.close()
        assert refused
    finally:
        valkey.close()
