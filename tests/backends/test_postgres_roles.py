"""Who may do what on PostgreSQL: real logins, each with its part, against every operation of a backend."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, LiteralString, NamedTuple, get_args
from urllib.parse import quote
from uuid import UUID

import msgspec
import psycopg
import pytest
from psycopg import sql

from headrace import App, EventKind, never
from headrace.backends.postgres import PostgresBackend
from headrace.backends.postgres.bulk import THRESHOLD
from headrace.backends.postgres.statements import calls
from headrace.backends.postgres.translate import translated
from headrace.backends.statements import read
from headrace.errors import ConfigError, JobFailed, Unavailable
from headrace.seam.policy import QueuePause
from headrace.seam.protocol import Backend, TickStore
from headrace.seam.records import (
    Beat,
    Cancel,
    Change,
    Claim,
    Delete,
    Hold,
    InsertStatus,
    JobKey,
    Move,
    Pause,
    Reap,
    Reprioritise,
    Requeue,
    Reschedule,
    Resume,
    Row,
    Selector,
    Settlement,
    SweepClause,
    SweepTarget,
    Watch,
)
from headrace.seam.ticks import (
    Drop,
    Look,
    NewTick,
    Overlap,
    Plan,
    Save,
    Schedule,
    ScheduleSelector,
    TickNote,
    TickOutcome,
)
from headrace.testing.conformance.base import LEASE, SECOND, job_id, row
from headrace.types import Failure, JobState
from tests.postgres import server

SCHEMA = 'Roles of "all" kinds'
OWNER = "The Owner"
DAY = 86_400 * SECOND
PARTS = ("producer", "worker", "janitor", "reader")
_numbers = count(1)


def url(user: str) -> str:
    return server().url(user=quote(user))


def backend(user: str = OWNER) -> PostgresBackend:
    return PostgresBackend(url(user), where="postgresql://db/app", schema=SCHEMA, listen=False)


@asynccontextmanager
async def opened(user: str = OWNER) -> AsyncIterator[PostgresBackend]:
    store = backend(user)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def ask(user: str, query: LiteralString, *params: Any) -> list[Any]:
    """The rows of a statement of that user's; ``{s}`` is the schema."""
    with psycopg.connect(url(user), autocommit=True) as connection:
        cursor = connection.execute(sql.SQL(query).format(s=sql.Identifier(SCHEMA)), params or None)
        return cursor.fetchall() if cursor.description else []


def login(name: str, more: LiteralString = "LOGIN") -> str:
    """A new role."""
    name = f"{name} {next(_numbers)}"
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} " + more).format(sql.Identifier(name)))
    return name


async def grant(part: str, role: str, *tenants: str) -> str:
    await backend().migrator.grant(part, role, tenants or None)
    return role


def superuser(statement: LiteralString, *names: str) -> None:
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


@functools.cache
def prepared() -> dict[str, str]:
    superuser("CREATE ROLE {} LOGIN", OWNER)
    superuser("CREATE SCHEMA {} AUTHORIZATION {}", SCHEMA, OWNER)
    made = {part: login(f"A {part}") for part in (*PARTS, "nobody")}

    async def prepare() -> None:
        async for _ in backend().migrator.up():
            pass
        for part in PARTS:
            await grant(part, made[part])

    asyncio.run(prepare())
    return made


@pytest.fixture(scope="module", autouse=True)
def roles() -> dict[str, str]:
    """A store whose owner may do nothing else in the database, and a login for each part; ``nobody`` has none."""
    return prepared()


@pytest.fixture
def queue() -> str:
    """A queue that no other test uses."""
    return f"q{next(_numbers)}"


class Jobs:
    """One job in every state that a change may ask for, in a queue of their own."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.available, self.paused, self.running, self.completed, self.failed = (
            job_id(next(_numbers)) for _ in range(5)
        )
        self.epoch = 0
        """Of the running one."""

    async def make(self, tenant: str = "") -> Jobs:
        epochs = {}
        async with opened() as store:
            for one in (self.running, self.completed, self.failed, self.paused, self.available):
                await store.insert(
                    [Row(one, self.queue, "t", {"parameters": b"{}"}, tenant=tenant, result_ttl=3600 * SECOND)]
                )
                if one in (self.running, self.completed, self.failed):
                    [job] = (await store.claim(Claim("held", (self.queue,), 1, LEASE))).jobs
                    epochs[job.id] = job.epoch
            self.epoch = epochs[self.running]
            done, broken = epochs[self.completed], epochs[self.failed]
            settled = [
                Settlement(self.completed, done, "held", JobState.COMPLETED, result=b"r", result_ttl=3600 * SECOND),
                Settlement(self.failed, broken, "held", JobState.FAILED, reason="broken"),
            ]
            await store.finish(settled)
            await store.alter(Selector(ids=[self.paused]), Pause())
        return self


class Operation(NamedTuple):
    """What it takes, and how it is done. It raises, or else it has worked."""

    parts: tuple[str, ...]
    do: Callable[[PostgresBackend, Jobs], Awaitable[object]]


def change(what: Change, job: str, *parts: str) -> Operation:
    async def do(store: PostgresBackend, jobs: Jobs) -> None:
        [altered] = await store.alter(Selector(ids=[getattr(jobs, job)]), what)
        assert altered.changed

    return Operation(parts, do)


async def insert(store: PostgresBackend, jobs: Jobs) -> None:
    one = row(next(_numbers), queue=jobs.queue)
    assert [answer.status for answer in await store.insert([one, one])] == [InsertStatus.NEW, InsertStatus.SAME]


async def insert_much(store: PostgresBackend, jobs: Jobs) -> None:
    large = [row(next(_numbers), queue=jobs.queue, cells={"blob": bytes(THRESHOLD)}) for _ in range(2)]
    assert [answer.status for answer in await store.insert(large)] == [InsertStatus.NEW] * 2


async def insert_in_a_transaction(store: PostgresBackend, jobs: Jobs) -> None:
    async with await psycopg.AsyncConnection.connect(store._url) as connection:
        try:
            joined: Any = store.tx.join(connection)
            [answer] = await joined.insert([row(next(_numbers), queue=jobs.queue)])
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigError("a driver's own error: headrace migrate grant producer") from error
    assert answer.status is InsertStatus.NEW


async def complete_in_a_transaction(store: PostgresBackend, jobs: Jobs) -> None:
    async with await psycopg.AsyncConnection.connect(store._url) as connection:
        try:
            joined: Any = store.tx.join(connection)
            assert await joined.complete(Settlement(jobs.running, jobs.epoch, "held", JobState.COMPLETED))
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigError("a driver's own error: headrace migrate grant worker") from error


async def claim(store: PostgresBackend, jobs: Jobs) -> None:
    assert [job.id for job in (await store.claim(Claim("w", (jobs.queue,), 1, LEASE))).jobs] == [jobs.available]


async def finish_and_claim(store: PostgresBackend, jobs: Jobs) -> None:
    done = Settlement(jobs.running, jobs.epoch, "held", JobState.COMPLETED)
    states, claimed = await store.finish_and_claim([done], Claim("w", (jobs.queue,), 1, LEASE))
    assert (states, [job.id for job in claimed.jobs]) == ([JobState.COMPLETED], [jobs.available])


async def finish(store: PostgresBackend, jobs: Jobs) -> None:
    done = Settlement(jobs.running, jobs.epoch, "held", JobState.COMPLETED)
    assert await store.finish([done]) == [JobState.COMPLETED]


async def finish_with_more(store: PostgresBackend, jobs: Jobs) -> None:
    spawned = row(next(_numbers), queue=jobs.queue)
    done = Settlement(jobs.running, jobs.epoch, "held", JobState.FAILED, error=b"e", spawn=[spawned])
    assert await store.finish([done]) == [JobState.FAILED]


async def renew(store: PostgresBackend, jobs: Jobs) -> None:
    renewed = await store.renew(Beat("held", "worker-1", (jobs.queue,), LEASE, [(jobs.running, jobs.epoch)]))
    assert renewed.lost == []


async def fetch(store: PostgresBackend, jobs: Jobs) -> None:
    found = await store.fetch([jobs.failed, jobs.completed], frozenset({"result"}))
    assert [record and record.result for record in found] == [None, b"r"]


async def scan(store: PostgresBackend, jobs: Jobs) -> None:
    assert len((await store.scan(Selector(queue=jobs.queue))).records) == 5


async def stats(store: PostgresBackend, jobs: Jobs) -> None:
    assert jobs.queue in {one.queue for one in (await store.stats()).queues}


async def pause_queue(store: PostgresBackend, jobs: Jobs) -> None:
    await store.policies.pause(QueuePause(jobs.queue))


async def cancel_many(store: PostgresBackend, jobs: Jobs) -> None:
    assert len(await store.alter(Selector(queue=jobs.queue), Cancel())) == 3


def schedule(queue: str, tenant: str = "", **more: Any) -> Schedule:
    """A new one, which nobody needs to look at."""
    number = next(_numbers)
    return Schedule(name=f"s{number}", uid=job_id(number), queue=queue, definition=b"d", tenant=tenant, **more)


def fires(one: Schedule, slot: int, overlap: Overlap = Overlap.ALLOW, **more: Any) -> Plan:
    """A plan by which a schedule fires."""
    fired = row(next(_numbers), queue=one.queue, tenant=one.tenant, **more)
    return Plan(one.name, one.uid, None, [NewTick(slot, slot, fired, overlap=overlap)])


async def kept(one: Schedule) -> Schedule:
    """Saved by the owner, and fired once."""
    async with opened() as store:
        assert await store.ticks.save([Save(one, 0)]) == [True]
        assert await store.ticks.plan([fires(one, 1)]) == [[TickOutcome.FIRED]]
    return one


async def save_schedule(store: PostgresBackend, jobs: Jobs) -> None:
    one = schedule(jobs.queue)
    assert await store.ticks.save([Save(one, 0), Save(one, 1), Drop(one.name, 2)]) == [True] * 3


async def find_schedule(store: PostgresBackend, jobs: Jobs) -> None:
    one = await kept(schedule(jobs.queue))
    assert [found.name for found in await store.ticks.find(ScheduleSelector(queue=jobs.queue))] == [one.name]


async def look_for_schedules(store: PostgresBackend, jobs: Jobs) -> None:
    one = await kept(schedule(jobs.queue, plan_priority=-5, look_at=1))
    assert one.name in {found.name for found in (await store.ticks.due(Look(1_000))).schedules}


async def plan_schedule(store: PostgresBackend, jobs: Jobs) -> None:
    one = await kept(schedule(jobs.queue))
    assert await store.ticks.plan([fires(one, 2)]) == [[TickOutcome.FIRED]]


async def read_history(store: PostgresBackend, jobs: Jobs) -> None:
    one = await kept(schedule(jobs.queue))
    assert [tick.slot for tick in await store.ticks.history(one.uid)] == [1]


async def note_tick(store: PostgresBackend, jobs: Jobs) -> None:
    one = await kept(schedule(jobs.queue))
    await store.ticks.note([TickNote(one.uid, 1, "completed", 2, 3)])
    async with opened() as owned:
        assert [tick.ran for tick in await owned.ticks.history(one.uid)] == [3]


def sweep(place: SweepTarget) -> Operation:
    return Operation(("janitor",), lambda store, jobs: store.sweep(SweepClause(target=place, older_than=DAY)))


async def tidy(store: PostgresBackend, jobs: Jobs) -> None:
    async with opened() as owned:
        await owned._connections.rows(f'UPDATE "{SCHEMA.replace(chr(34), chr(34) * 2)}".duties SET next_at = 0')
    await store.tidy([SweepClause(target=place, older_than=DAY) for place in SweepTarget])


EVERYBODY, PRODUCERS, READERS = PARTS, ("producer", "worker"), ("janitor", "reader")
OPERATIONS = {
    "insert": Operation(PRODUCERS, insert),
    "insert, much": Operation(PRODUCERS, insert_much),
    "insert, joined": Operation(PRODUCERS, insert_in_a_transaction),
    "now": Operation(EVERYBODY, lambda store, jobs: store.now()),
    "claim": Operation(("worker",), claim),
    "finish_and_claim": Operation(("worker",), finish_and_claim),
    "finish": Operation(("worker",), finish),
    "finish, more": Operation(("worker",), finish_with_more),
    "finish, joined": Operation(("worker",), complete_in_a_transaction),
    "renew": Operation(("worker",), renew),
    "reap": Operation(("worker",), lambda store, jobs: store.reap(Reap())),
    "alter, Cancel": change(Cancel(), "available", *PRODUCERS, "janitor"),
    "alter, Cancel, running": change(Cancel(), "running", *PRODUCERS, "janitor"),
    "alter, Cancel, many": Operation(("janitor",), cancel_many),
    "alter, Watch": change(Watch("inbox"), "available", *PRODUCERS, "janitor"),
    "alter, Pause": change(Pause(), "available", "janitor"),
    "alter, Resume": change(Resume(), "paused", "janitor"),
    "alter, Requeue": change(Requeue(), "failed", "janitor"),
    "alter, Move": change(Move("elsewhere"), "available", "janitor"),
    "alter, Reprioritise": change(Reprioritise(5), "available", "janitor"),
    "alter, Reschedule": change(Reschedule(SECOND), "available", "janitor"),
    "alter, Hold": change(Hold(SECOND), "completed", "janitor"),
    "alter, Delete": change(Delete(), "failed", "janitor"),
    "pause": Operation(("janitor",), pause_queue),
    "fetch": Operation(EVERYBODY, fetch),
    "scan": Operation(READERS, scan),
    "stats": Operation(READERS, stats),
    "ticks, save": Operation(PRODUCERS, save_schedule),
    "ticks, find": Operation(EVERYBODY, find_schedule),
    "ticks, due": Operation(EVERYBODY, look_for_schedules),
    "ticks, plan": Operation(PRODUCERS, plan_schedule),
    "ticks, history": Operation(EVERYBODY, read_history),
    "ticks, note": Operation(("worker",), note_tick),
    "tidy": Operation(("janitor",), tidy),
} | {f"sweep, {place.value}": sweep(place) for place in SweepTarget}


# -- the matrix


def test_every_operation_is_in_the_matrix() -> None:
    operations = {name for name, value in vars(Backend).items() if inspect.iscoroutinefunction(value)}
    assert {name.split(", ")[0] for name in OPERATIONS} == operations - {"open", "close"} | {
        "finish_and_claim",
        "ticks",
        "pause",
        "tidy",
    }
    of_ticks = {f"ticks, {name}" for name, value in vars(TickStore).items() if inspect.iscoroutinefunction(value)}
    assert {name for name in OPERATIONS if name.startswith("ticks")} == of_ticks
    assert {kind.__name__ for kind in get_args(Change)} <= {part for name in OPERATIONS for part in name.split(", ")}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_part_gives_exactly_its_operations(roles: dict[str, str], queue: str, part: str, name: str) -> None:
    operation = OPERATIONS[name]
    jobs = await Jobs(queue).make()
    async with opened(roles[part]) as store:
        if part in operation.parts:
            await operation.do(store, jobs)
            return
        with pytest.raises(ConfigError) as told:
            await operation.do(store, jobs)
    remedy = re.search(r"headrace migrate grant ([\w|]+)", str(told.value))
    assert remedy is not None, told.value
    assert set(remedy[1].split("|")) & set(operation.parts)


async def test_who_has_nothing_does_not_even_get_in(roles: dict[str, str]) -> None:
    with pytest.raises(
        ConfigError, match=r"permission denied for schema .*headrace migrate grant producer\|worker\|janitor"
    ):
        await backend(roles["nobody"]).open()
    for query in ("SELECT {s}.forget_queues_v1(NULL)", "SELECT * FROM {s}.jobs_v1", "SELECT * FROM {s}.jobs"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ask(roles["nobody"], query)  # type: ignore[arg-type]


REFUSED = {
    'FATAL:  password authentication failed for user "ada"': "Look at the user and password",
    'FATAL:  Peer authentication failed for user "ada"': "Look at the user and password",
    "fe_sendauth: no password supplied": "Look at the user and password",
    'FATAL:  role "ada" does not exist': "Look at the user and password",
    'FATAL:  role "ada" is not permitted to log in': "Look at the user and password",
    'FATAL:  database "shop" does not exist': "createdb NAME",
    'FATAL:  permission denied for database "shop"\nDETAIL:  User does not have CONNECT privilege.': "GRANT CONNECT",
    'FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "ada", database "shop", no encryption': "pg_hba.conf",
    'invalid sslmode value: "often"': "options in the URL",
    'invalid integer value "x" for connection option "keepalives_idle"': "options in the URL",
    'invalid port number: "99999"': "port",
}
PASSING = [
    "FATAL:  the database system is starting up",
    "FATAL:  the database system is shutting down",
    "FATAL:  the database system is in recovery mode",
    "FATAL:  sorry, too many clients already",
    'FATAL:  too many connections for role "ada"',
    "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
    "Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?",
    "server closed the connection unexpectedly",
]
_FAILED = 'connection failed: connection to server at "10.0.0.2", port 5432 failed: '


@pytest.mark.parametrize("said", REFUSED)
def test_a_login_in_vain_says_what_to_do(said: str) -> None:
    """And is an outage for who is at work already."""
    told = translated(psycopg.OperationalError(_FAILED + said), "postgresql://db/app")
    assert isinstance(told, ConfigError)
    assert isinstance(told, Unavailable)
    assert REFUSED[said] in str(told)
    assert said.splitlines()[0] in str(told)


@pytest.mark.parametrize("said", PASSING)
def test_a_server_that_cannot_serve_just_now(said: str) -> None:
    told = translated(psycopg.OperationalError(_FAILED + said), "postgresql://db/app")
    assert isinstance(told, Unavailable)
    assert not isinstance(told, ConfigError)


@pytest.mark.parametrize(("other", "final"), [(PASSING[0], False), (PASSING[6], True)])
def test_of_several_servers(other: str, final: bool) -> None:
    """A name with two addresses, on one of which nobody listens, is as good as one."""
    lines = [_FAILED + other, "Multiple connection attempts failed. All failures were:"]
    lines += [f"- host: 'db', port: '5432', hostaddr: '10.0.0.{n}': {said}" for n, said in enumerate([*REFUSED][:1])]
    told = translated(psycopg.OperationalError("\n".join(lines)), "postgresql://db/app")
    assert isinstance(told, ConfigError) is final


async def test_who_is_not_known_is_told_when_he_comes() -> None:
    for user, database in (("nobody at all", "postgres"), ("headrace", "nowhere")):
        with pytest.raises(ConfigError, match=r"does not exist\. Look at"):
            await PostgresBackend(server().url(database, quote(user))).open()
    with pytest.raises(ConfigError, match=r"connect_timeout: 'x'\. Expected whole seconds"):
        await PostgresBackend(f"{server().url()}?connect_timeout=x").open()


async def test_a_worker_outlasts_that_it_is_not_let_in(queue: str) -> None:
    role = await grant("worker", login("Shut out"))
    away = asyncio.Event()
    app = App(f"{url(role)}?schema={quote(SCHEMA)}", worker={"poll": "50ms"})
    app.observe(lambda event: away.set() if event.kind is EventKind.STORE_AWAY else None)

    @app.task(queue=queue)
    async def note() -> None: ...

    work = asyncio.ensure_future(app.work())
    async with asyncio.timeout(60):
        await note.call()
        superuser("ALTER ROLE {} NOLOGIN", role)
        ask("headrace", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", role)
        await away.wait()
        superuser("ALTER ROLE {} LOGIN", role)
        await note.call()
    app.stop()
    await work
    await app.client.close()


async def test_a_worker_works_though_it_may_not_pause_tenants(
    roles: dict[str, str], queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    janitor = App(f"{url(roles['janitor'])}?schema={quote(SCHEMA)}")
    app = App(f"{url(roles['worker'])}?schema={quote(SCHEMA)}")

    @app.task(queue=queue)
    async def note() -> int:
        return 7

    async with janitor, app:
        await janitor.policies.pause_tenant("paused-everywhere")
        try:
            job = await note.enqueue()
            await app.drain()
            assert await job.result() == 7
        finally:
            await janitor.policies.resume_tenant("paused-everywhere")
    assert "tenants that are paused in all queues may run in those of this worker" in caplog.text


@pytest.mark.parametrize("part", PARTS)
async def test_a_hint_is_for_all_who_are_in(roles: dict[str, str], part: str) -> None:
    store = PostgresBackend(url(roles[part]), schema=SCHEMA)
    await store.open()
    try:
        assert store.hints is not None
        async with store.hints.listen({"queue:q"}) as heard:
            store._notifier.send([("queue:q", None)])
            assert (await anext(heard)).topic == "queue:q"
    finally:
        await store.close()


@pytest.mark.parametrize("part", PARTS)
def test_nobody_has_a_right_on_a_table(roles: dict[str, str], part: str) -> None:
    query = """
        SELECT c.relname, p FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS p
        WHERE n.nspname = %s AND c.relkind IN ('r', 'p', 'v') AND has_table_privilege(c.oid, p)
    """
    views = {("jobs_v1", "SELECT"), ("queues_v1", "SELECT")} if part in READERS else set()
    assert set(ask(roles[part], query, SCHEMA)) == views | {("migrations", "SELECT")}


def test_what_acts_for_its_owner_is_not_for_everybody() -> None:
    query = """
        SELECT p.proname, p.proconfig, has_function_privilege('public', p.oid, 'EXECUTE')
        FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = %s AND p.prosecdef
    """
    found = ask(OWNER, query, SCHEMA)
    assert {name for name, _, _ in found} == {
        name
        for [name] in ask(OWNER, "SELECT name FROM {s}.rights WHERE name NOT IN ('jobs_v1', 'queues_v1', 'migrations')")
    }
    path = 'search_path="Roles of ""all"" kinds", pg_temp'
    assert [(name, open_) for name, config, open_ in found if open_ or path not in config] == []
    assert [name for name, config, _ in found if "jit=off" not in config] == []


@pytest.mark.parametrize("calls", [calls(), read("headrace.backends.postgres", "bind")], ids=["calls", "bind"])
def test_all_that_a_client_calls_is_somebody_s_right(calls: dict[str, str]) -> None:
    """But for COPY, which is for the owner: others send large rows as they send all."""
    statements = " ".join(text for name, text in calls.items() if not name.startswith("bulk_"))
    rights = {name for [name] in ask(OWNER, "SELECT name FROM {s}.rights")}
    assert set(re.findall(r"(?<!::)\{schema\}\.(\w+)", statements)) - rights == set()


def test_what_a_confined_role_calls_looks_the_same() -> None:
    query = """
        SELECT pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)
        FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = %s AND p.proname IN (%s, 'own_' || %s)
    """
    for name in (
        "insert_v1", "fetch_v1", "matching_v1", "save_v1", "find_v1", "due_v1", "plan_v1", "history_v1",
    ):  # fmt: skip
        one, other = ask(OWNER, query, SCHEMA, name, name)
        assert one == other


# -- attacks


def test_temporary_tables_shadow_nothing(roles: dict[str, str], queue: str) -> None:
    """Whoever has a table of the same name in the session gets nothing into it, and nothing out of it."""
    columns = """
        SELECT c.relname, string_agg(format('%%I %%s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ')
        FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
        WHERE c.relnamespace = quote_ident(%s)::regnamespace AND c.relkind IN ('r', 'p') GROUP BY c.relname
    """
    tables = ask(OWNER, columns, SCHEMA)
    assert {"jobs", "ready", "queues", "tenant_roles"} <= {name for name, _ in tables}
    with psycopg.connect(url(roles["worker"]), autocommit=True) as mine:
        for name, shape in tables:
            mine.execute(f'CREATE TEMP TABLE "{name}" ({shape})'.encode())
        mine.execute("SET search_path = pg_temp, public")
        call = sql.SQL("SELECT id FROM {}.enqueue_v1(%s)").format(sql.Identifier(SCHEMA))
        stored = mine.execute(call, (f'{{"task": "t", "queue": "{queue}"}}',)).fetchall()
        claimed = sql.SQL(
            "SELECT id FROM {}.claim_v1(NULL, 'w', %s, 1, 60000000, 15::smallint, NULL, 1000, true) LIMIT 1"
        )
        assert mine.execute(claimed.format(sql.Identifier(SCHEMA)), ([queue],)).fetchall() == stored
        for name, _ in tables:
            assert mine.execute(f'SELECT count(*) FROM pg_temp."{name}"'.encode()).fetchall() == [(0,)]
    assert ask(OWNER, "SELECT id FROM {s}.jobs_v1 WHERE queue = %s", queue) == stored


def test_nobody_puts_anything_into_the_schema(roles: dict[str, str]) -> None:
    for part in PARTS:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ask(roles[part], "CREATE FUNCTION {s}.now_us() RETURNS bigint LANGUAGE sql AS 'SELECT 0'")


@pytest.mark.parametrize("kind", [0, 2, 4, 9, None])
def test_a_producer_asks_for_no_more_than_a_cancellation(roles: dict[str, str], kind: int | None) -> None:
    call: LiteralString = (
        "SELECT * FROM {s}.ask_v1(NULL, true, '{{}}', '{{}}', '{{}}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1,"
        " false, false, %s, 'x')"
    )
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="expected change 1 or 7"):
        ask(roles["producer"], call, kind)


@pytest.mark.parametrize("part", PARTS)
def test_nobody_grants_himself_more(roles: dict[str, str], part: str) -> None:
    for call in (
        "grant_v1('janitor', session_user)",
        "confine_v1(session_user, NULL)",
        "revoke_v1('reader', session_user)",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ask(roles[part], "SELECT {s}." + call)  # type: ignore[arg-type]


# -- granting


async def test_parts_add_up_and_are_taken_back_one_by_one(queue: str) -> None:
    role = login("both")
    await grant("producer", role)
    await grant("reader", await grant("reader", role))
    jobs = await Jobs(queue).make()
    async with opened(role) as store:
        await scan(store, jobs)
        await insert(store, jobs)
        await backend().migrator.revoke("producer", role)
        await stats(store, jobs)
        with pytest.raises(ConfigError, match=r"insert_v1.*headrace migrate grant producer ROLE"):
            await insert(store, jobs)
    await backend().migrator.revoke("reader", role)
    with pytest.raises(ConfigError, match="permission denied for schema"):
        await backend(role).open()
    superuser("DROP ROLE {}", role)


async def test_a_part_includes_what_later_steps_add_to_it() -> None:
    """A step that adds something ends with ``seal``, which gives it to all who play the part."""
    role = await grant("reader", login("early"))
    superuser("REVOKE SELECT ON {}.queues_v1 FROM {}", SCHEMA, role)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ask(role, "SELECT * FROM {s}.queues_v1")
    ask(OWNER, "SELECT {s}.seal()")
    assert ask(role, "SELECT count(*) >= 0 FROM {s}.queues_v1") == [(True,)]


async def test_only_roles_that_are_there_and_below_are_granted_anything() -> None:
    migrator = backend().migrator
    for role in ("no such role", "public", "PUBLIC", "current_user"):
        with pytest.raises(ConfigError, match=f'there is no role "{role}".*CREATE ROLE'):
            await migrator.grant("reader", role)
    with pytest.raises(ConfigError, match="owns the store"):
        await migrator.grant("reader", OWNER)
    with pytest.raises(ConfigError, match="expected producer, worker, janitor or reader, got king"):
        await migrator.grant("king", login("subject"))


async def test_only_the_owner_grants(roles: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="Use the role that owns the schema"):
        await backend(roles["janitor"]).migrator.grant("reader", roles["nobody"])


async def test_nothing_is_granted_where_everybody_may_create() -> None:
    role = login("guest")
    superuser("GRANT CREATE ON SCHEMA {} TO PUBLIC", SCHEMA)
    try:
        with pytest.raises(ConfigError, match=r"everybody may create in schema .*REVOKE CREATE ON SCHEMA"):
            await grant("reader", role)
    finally:
        superuser("REVOKE CREATE ON SCHEMA {} FROM PUBLIC", SCHEMA)


async def test_a_role_that_is_taken_on_counts(queue: str) -> None:
    """A login that takes on one role after another has the rights of the one that it has taken on."""
    svc, acme = login("svc", "LOGIN NOINHERIT"), await grant("reader", login("acme", "NOLOGIN"), "acme")
    superuser("GRANT {} TO {}", acme, svc)
    await Jobs(queue).make("acme")
    await Jobs(f"{queue}b").make("other")
    with psycopg.connect(url(svc), autocommit=True) as mine:
        query = sql.SQL("SELECT DISTINCT tenant FROM {}.jobs_v1").format(sql.Identifier(SCHEMA))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            mine.execute(query)
        mine.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(acme)))
        assert mine.execute(query).fetchall() == [("acme",)]


# -- tenants


@pytest.fixture
async def acme() -> str:
    """A producer and reader that is confined to acme."""
    role = login("acme")
    await grant("producer", role, "acme")
    return await grant("reader", role)


def of(tenant: str, queue: str, **more: Any) -> Row:
    return row(next(_numbers), queue=queue, tenant=tenant, **more)


async def test_a_confined_role_enqueues_for_its_tenants_alone(acme: str, queue: str) -> None:
    mine = of("acme", queue)
    async with opened(acme) as store:
        assert [a.status for a in await store.insert([mine, mine])] == [InsertStatus.NEW, InsertStatus.SAME]
        for tenant in ("other", "", "ACME"):
            with pytest.raises(ConfigError, match=f'confined to other tenants than "{tenant}".*migrate grant producer'):
                await store.insert([of("acme", queue), of(tenant, queue)])
    assert ask(OWNER, "SELECT id FROM {s}.jobs_v1 WHERE queue = %s", queue) == [(UUID(bytes=mine.id),)]


async def test_a_confined_role_has_keys_of_its_own(acme: str, queue: str) -> None:
    """It neither meets those of others nor keeps them from theirs; whoever is not confined sees whose they are."""
    rival = await grant("producer", login("rival"), "rival")
    theirs, mine, again = of("other", queue, key="k"), of("acme", queue, key="k"), of("acme", queue, key="k")
    ours = of("rival", queue, key="k")
    async with opened() as owned, opened(acme) as store, opened(rival) as other:
        await owned.insert([theirs])
        assert [a.status for a in await store.insert([mine, again])] == [InsertStatus.NEW, InsertStatus.DUPLICATE]
        assert [a.status for a in await other.insert([ours])] == [InsertStatus.NEW]
        for one, expected in ((owned, theirs), (store, mine), (other, ours)):
            [found] = await one.fetch([JobKey(queue, "k")])
            assert found is not None
            assert (found.id, found.key) == (expected.id, "k")
        for key in ("other/k", "rival/k", "acme/acme/k"):
            assert await store.fetch([JobKey(queue, key)]) == [None]
            assert await store.alter(Selector(keys=[JobKey(queue, key)]), Cancel()) == []
        [named] = await owned.fetch([JobKey(queue, "acme/k")])
        assert named is not None
        assert (named.id, named.key) == (mine.id, "acme/k")
        [altered] = await store.alter(Selector(keys=[JobKey(queue, "k")]), Cancel())
        assert (altered.id, altered.key) == (mine.id, "k")
        assert [a.status for a in await store.insert([again])] == [InsertStatus.NEW]
    view: LiteralString = "SELECT key FROM {s}.jobs_v1 WHERE queue = %s"
    assert ask(acme, view, queue) == [("k",)] * 2
    assert sorted(ask(OWNER, view, queue)) == [("acme/k",), ("acme/k",), ("k",), ("rival/k",)]


@pytest.mark.parametrize(("one", "other"), [("a", "a/b"), ("a", "a%2Fb"), ("", "/"), ("a%", "a%25")])
async def test_no_tenant_s_keys_begin_like_those_of_another(queue: str, one: str, other: str) -> None:
    roles = [await grant("producer", login("t"), tenant) for tenant in (one, other)]
    keys = ("b/k", "k", "/k", "2Fb/k", "5/k")
    for role, tenant in zip(roles, (one, other), strict=True):
        async with opened(role) as store:
            answers = await store.insert([of(tenant, queue, key=key) for key in keys])
            assert [answer.status for answer in answers] == [InsertStatus.NEW] * len(keys)


async def test_a_role_of_several_tenants_names_the_keys_of_all(queue: str) -> None:
    role = await grant("producer", login("agency"), "b", "a")
    jobs = [of(tenant, queue, key="k") for tenant in ("b", "a")]
    async with opened(role) as store:
        assert [a.status for a in await store.insert(jobs)] == [InsertStatus.NEW] * 2
        found = await store.fetch([JobKey(queue, "none"), JobKey(queue, "k"), jobs[0].id])
        assert [record and record.tenant for record in found] == [None, "a", "b"]
        altered = await store.alter(Selector(keys=[JobKey(queue, "k")], tenant="b"), Cancel())
        assert [one.id for one in altered] == [jobs[0].id]
        assert len(await store.alter(Selector(keys=[JobKey(queue, "k")]), Watch("inbox"))) == 2


async def test_a_confined_role_does_not_get_the_id_of_another_s_job(acme: str, queue: str) -> None:
    theirs = of("other", queue)
    async with opened() as store:
        await store.insert([theirs])
    async with opened(acme) as store:
        same = msgspec.structs.replace(of("acme", queue, reply_to="inbox"), id=theirs.id)
        with pytest.raises(ConfigError, match="the one that has this id"):
            await store.insert([of("acme", queue), same])
    assert ask(OWNER, "SELECT count(*) FROM {s}.jobs_v1 WHERE queue = %s", queue) == [(1,)]
    assert ask(OWNER, "SELECT count(*) FROM {s}.waiters WHERE id = %s", UUID(bytes=theirs.id)) == [(0,)]


@pytest.mark.parametrize("part", ["producer", "worker", "janitor", "confined"])
async def test_only_the_owner_says_what_time_it_is(roles: dict[str, str], acme: str, queue: str, part: str) -> None:
    """An instant of somebody's choice could end the time for which a key or a result is held, or spoil lists."""
    one = of("acme", queue)
    async with opened(acme if part == "confined" else roles[part]) as store:
        if part == "janitor":
            async with opened() as owned:
                await owned.insert([one])
        else:
            await store.insert([one], 5)
        await store.alter(Selector(ids=[one.id]), Cancel(), 2**62)
        [record] = await store.fetch([one.id])
        assert record is not None
        assert record.enqueued_at <= (record.finished_at or 0) < record.enqueued_at + DAY
        assert record.enqueued_at > 1_700_000_000 * SECOND


async def test_a_confined_role_reads_the_jobs_of_its_tenants_alone(acme: str, queue: str) -> None:
    ours = [of("acme", queue, key=f"a{n}") for n in range(7)]
    theirs = [of("other", queue, key=f"b{n}") for n in range(40)]
    async with opened() as store:
        await store.insert(theirs[:20] + ours + theirs[20:])
    async with opened(acme) as store:
        names = [one.id for one in (*ours, *theirs)] + [JobKey(queue, one.key or "") for one in (*ours, *theirs)]
        found = await store.fetch(names, frozenset({"parameters", "result", "error"}))
        assert [record is not None for record in found] == ([True] * 7 + [False] * 40) * 2
        pages, after = [], None
        while True:
            page = await store.scan(Selector(queue=queue), after, 3)
            pages.append([record.id for record in page.records])
            if (after := page.after) is None:
                break
        assert [len(page) for page in pages] == [3, 3, 1]
        assert [one for page in pages for one in page] == [one.id for one in reversed(ours)]
        assert (await store.scan(Selector(queue=queue, tenant="other"))).records == []
        named = await store.scan(Selector(ids=[one.id for one in (*theirs, *ours)]), None, 5)
        assert [record.id for record in named.records] == [one.id for one in reversed(ours)][:5]
        for operation in (store.stats(), store.claim(Claim("w", (queue,), 1, LEASE))):
            with pytest.raises(ConfigError, match="permission denied"):
                await operation
    count_ = "SELECT tenant, count(*) FROM {s}.jobs_v1 WHERE queue = %s GROUP BY tenant"
    assert ask(acme, count_, queue) == [("acme", 7)]
    assert sorted(ask(OWNER, count_, queue)) == [("acme", 7), ("other", 40)]


async def test_a_confined_role_cancels_the_jobs_of_its_tenants_alone(acme: str, queue: str) -> None:
    ours, theirs = [of("acme", queue, key="a")], [of("other", queue, key=f"b{n}") for n in range(3)]
    async with opened() as store:
        await store.insert(theirs + ours)
    async with opened(acme) as store:
        for what in (Watch("inbox"), Cancel()):
            keys = [JobKey(queue, one.key or "") for one in theirs]
            assert await store.alter(Selector(ids=[one.id for one in theirs], keys=keys), what) == []
            [altered] = await store.alter(Selector(queue=queue, limit=2), what)
            assert altered.id == ours[0].id
        for what in (Delete(), Pause(), Requeue()):
            with pytest.raises(ConfigError, match="permission denied"):
                await store.alter(Selector(ids=[ours[0].id]), what)
    states = "SELECT tenant, state FROM {s}.jobs_v1 WHERE queue = %s ORDER BY 1"
    assert ask(OWNER, states, queue) == [("acme", "cancelled"), *[("other", "available")] * 3]


async def test_a_confined_role_enqueues_from_sql(acme: str, queue: str) -> None:
    job = '{"task": "t", "queue": "%s", "tenant": "%s", "key": "k"}'
    call: LiteralString = "SELECT status FROM {s}.enqueue_v1(%s)"
    for tenant in ("other", ""):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match=f'confined to other tenants than "{tenant}";'):
            ask(acme, call, job % (queue, tenant))
    for none in ('{"task": "t"}', '{"task": "t", "tenant": null}', '[{"task": "t", "tenant": "acme"}, {"task": "t"}]'):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match='confined to other tenants than "";'):
            ask(acme, call, none)
    for wrong in ('[{"task": "t", "tenant": "acme"}, 7]', '{"task": "t", "tenant": 5}', "7", "null", None):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="expected"):
            ask(acme, call, wrong)
    assert ask(acme, call, job % (queue, "acme")) == [("new",)]
    assert ask(acme, call, job % (queue, "acme")) == [("duplicate",)]
    async with opened(acme) as store, await psycopg.AsyncConnection.connect(store._url) as mine:
        joined: Any = store.tx.join(mine)
        await joined.insert([of("acme", queue)])
        with pytest.raises(ConfigError, match=r'confined to other tenants than "other".*migrate grant producer'):
            await joined.insert([of("other", queue)])
    assert ask(OWNER, "SELECT count(*) FROM {s}.jobs_v1 WHERE queue = %s", queue) == [(1,)]


def test_a_condition_of_ones_own_sees_no_more_than_the_view_shows(acme: str, queue: str) -> None:
    async def prepare() -> None:
        async with opened() as store:
            await store.insert([of("acme", queue, task="mine"), of("other", queue, task="theirs")])

    asyncio.run(prepare())
    seen: list[str] = []
    with psycopg.connect(url(acme), autocommit=True) as mine:
        mine.add_notice_handler(lambda notice: seen.append(notice.message_primary or ""))
        mine.execute(
            "CREATE FUNCTION pg_temp.leak(x text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS"
            " $$ BEGIN RAISE NOTICE '%', x; RETURN true; END $$"
        )
        query = sql.SQL("SELECT task FROM {}.jobs_v1 WHERE pg_temp.leak(task) AND queue = %s")
        assert mine.execute(query.format(sql.Identifier(SCHEMA)), (queue,)).fetchall() == [("mine",)]
    assert "mine" in seen
    assert "theirs" not in seen


async def test_a_confined_role_keeps_the_schedules_of_its_tenants_alone(acme: str, queue: str) -> None:
    theirs = await kept(schedule(queue, "other"))
    mine = schedule(queue, "acme")
    async with opened(acme) as store:
        ticks = store.ticks
        assert await ticks.save([Save(mine, 0)]) == [True]
        assert await ticks.save([Save(mine, 0)]) == [False]
        for tenant in ("other", ""):
            with pytest.raises(ConfigError, match=f'confined to other tenants than "{tenant}".*migrate grant producer'):
                await ticks.save([Save(schedule(queue, tenant), 0)])
        # The names of others are free for it, and what is done under them is done to schedules of its own.
        changes: list[Save | Drop] = [Drop(theirs.name, expect) for expect in (2, 9)]
        named_alike = msgspec.structs.replace(mine, name=theirs.name, uid=job_id(next(_numbers)))
        changes += [Save(named_alike, expect) for expect in (0, 2, 9)]
        for change in changes:
            assert await ticks.save([change]) == [change.expect == 0]
            mine_too = Drop(theirs.name, 1)
            assert await ticks.save([mine_too]) == [change.expect == 0]
        with pytest.raises(ConfigError, match="the one that has this uid"):
            await ticks.save([Save(msgspec.structs.replace(mine, name="other", uid=theirs.uid), 0)])
        for number in (-1, 2**62):
            with pytest.raises(ConfigError, match="slot: expected 0 to"):
                await ticks.save([Save(schedule(queue, "acme", slot=number), 0)])
        assert [one.name for one in await ticks.find(ScheduleSelector(queue=queue))] == [mine.name]
        assert await ticks.find(ScheduleSelector(names=[theirs.name])) == []
        assert await ticks.find(ScheduleSelector(tenant="other")) == []
        assert (await ticks.due(Look())).schedules == []
        assert await ticks.save([Drop(mine.name, 1)]) == [True]
    async with opened() as store:
        [left] = await store.ticks.find(ScheduleSelector(queue=queue))
        assert (left.name, left.tenant, left.version) == (theirs.name, "other", 2)


async def test_a_confined_role_pages_through_its_schedules(queue: str) -> None:
    """In the order of the names that it sees, whatever they are scoped under; and a page costs what it has."""
    tenants = (f"x/{queue}", f"y{queue}")
    role = await grant("producer", login("pages"), *tenants)
    scopes = [f"x%2F{queue}/", f"y{queue}/"]
    rare = f"{queue}-rare"
    bare = ["", "0", "x", f"x%2F{queue}", f"x%2F{queue}0", f"y{queue}0", "z", "\U0010ffff" * 3]
    seen = [f"{queue}-{n:04}" for n in range(1_000)]
    rows = [(f"{scopes[n % 2]}{name}", tenants[n % 2], rare if n % 250 == 0 else queue) for n, name in enumerate(seen)]
    rows += [(f"{name}{queue}", tenants[n % 2], queue) for n, name in enumerate(bare)]
    rows += [
        (f"{scopes[1]}moved", tenants[0], queue),
        (f"w{queue}", "other", queue),
        (f"{scopes[0]}theirs", "other", rare),
    ]
    with psycopg.connect(url(OWNER)) as connection, connection.cursor() as cursor:
        cursor.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(SCHEMA)))
        cursor.executemany(
            "WITH s AS (INSERT INTO schedules (created_at, updated_at, uid, name, tenant, queue, definition)"
            " VALUES (0, 0, gen_random_uuid(), %s, %s, %s, '') RETURNING name, uid)"
            " INSERT INTO agenda (runs, version, uid, plan_priority, bucket, enabled, name)"
            " SELECT 0, 1, uid, 0, 0, false, name FROM s",
            rows,
        )
    want = sorted(("moved", *seen, *(f"{name}{queue}" for name in bare)), key=str.encode)
    async with opened(role) as store:
        found: list[str] = []
        while page := await store.ticks.find(ScheduleSelector(), after=found[-1] if found else None, limit=90):
            found += [one.name for one in page]
        assert found == want
        some = await store.ticks.find(ScheduleSelector(tenant=tenants[0], queue=rare), after=seen[1], limit=2)
        assert [one.name for one in some] == [seen[250], seen[500]]
    walked = "SELECT sum(pg_stat_get_xact_tuples_returned(c.oid)) FROM pg_class AS c WHERE c.relname LIKE 'schedules%%'"
    for which, most in (((None, None), 100), ((None, rare), 30)):
        with psycopg.connect(url(role)) as connection:
            query = sql.SQL("SELECT count(*) FROM {}.own_find_v1(NULL, %s, %s, %s, 10)").format(sql.Identifier(SCHEMA))
            [[page_size]] = connection.execute(query, (*which, seen[0])).fetchall()
            [[rows_read]] = connection.execute(walked).fetchall()
            assert page_size == (3 if which[1] else 10)
            assert rows_read <= most


async def test_a_confined_role_fires_the_schedules_of_its_tenants_alone(acme: str, queue: str) -> None:
    theirs, mine = await kept(schedule(queue, "other")), await kept(schedule(queue, "acme"))
    async with opened(acme) as store:
        ticks = store.ticks
        assert await ticks.plan([fires(mine, 2), fires(mine, 1)]) == [[TickOutcome.FIRED], [None]]
        assert [tick.slot for tick in await ticks.history(mine.uid)] == [2, 1]
        assert await ticks.history(theirs.uid) == []
        assert await ticks.plan([fires(msgspec.structs.replace(theirs, tenant="acme"), 2)]) == [None]
        assert await ticks.plan([fires(msgspec.structs.replace(mine, name="none"), 3)]) == [None]
        for plan, told in (
            (fires(theirs, 2), 'than "other"'),
            (fires(msgspec.structs.replace(mine, tenant="other"), 3), 'than "other"'),
            (fires(mine, 3, expires=2**62), "expires: expected at most ten years"),
            (fires(mine, 2**62), "instant: expected 0 to"),
        ):
            with pytest.raises(ConfigError, match=told):
                await ticks.plan([plan])
        with pytest.raises(ConfigError, match="permission denied"):
            await ticks.note([TickNote(mine.uid, 1, "completed", 1, 1)])
    async with opened() as store:
        assert [tick.slot for tick in await store.ticks.history(theirs.uid)] == [1]
        assert [tick.slot for tick in await store.ticks.history(mine.uid)] == [2, 1]


async def test_a_confined_role_reaches_no_job_of_others_through_its_schedules(acme: str, queue: str) -> None:
    """Neither as the last one, which is cancelled or looked at, nor as one that is stored already."""
    jobs = await Jobs(queue).make("other")
    mine = schedule(queue, "acme", last_job=jobs.available)
    async with opened(acme) as store:
        for expect in (0, 1):
            with pytest.raises(ConfigError, match="not the last one of its schedule"):
                await store.ticks.save([Save(mine, expect)])
            await store.ticks.save([Save(msgspec.structs.replace(mine, last_job=None), expect)])
        for overlap in Overlap:
            same = NewTick(1, 1, msgspec.structs.replace(of("acme", queue), id=jobs.available), overlap=overlap)
            with pytest.raises(ConfigError, match="the one that has this id"):
                await store.ticks.plan([Plan(mine.name, mine.uid, None, [same])])
    async with opened() as store:
        assert await store.ticks.history(mine.uid) == []
        [untouched] = await store.fetch([jobs.available])
        assert untouched is not None
        assert untouched.state is JobState.AVAILABLE


async def test_several_tenants_and_other_ones(queue: str) -> None:
    role = await grant("reader", login("agency"), "a", "b")
    async with opened() as store:
        await store.insert([of(tenant, queue) for tenant in ("a", "b", "c")])

    async def seen() -> list[str]:
        async with opened(role) as store:
            return sorted(record.tenant for record in (await store.scan(Selector(queue=queue))).records)

    assert await seen() == ["a", "b"]
    await grant("reader", role)
    assert await seen() == ["a", "b"]
    await grant("reader", role, "c")
    assert await seen() == ["c"]
    await backend().migrator.grant("reader", role, [])
    assert await seen() == ["a", "b", "c"]


async def test_a_member_of_a_confined_role_is_as_confined(queue: str) -> None:
    group, member = await grant("producer", login("group", "NOLOGIN"), "acme"), login("member")
    superuser("GRANT {} TO {}", group, member)
    async with opened(member) as store:
        await store.insert([of("acme", queue)])
        with pytest.raises(ConfigError, match="confined to other tenants"):
            await store.insert([of("other", queue)])


async def test_a_role_without_tenants_sees_nothing(acme: str, queue: str) -> None:
    """If the list of its tenants is lost, a confined role is not free, and no later step sets it free."""
    async with opened() as store:
        await store.insert([of("acme", queue)])
    ask(OWNER, "DELETE FROM {s}.tenant_roles WHERE role::text = quote_ident(%s)", acme)
    ask(OWNER, "SELECT {s}.seal()")
    await grant("reader", acme)
    async with opened(acme) as store:
        assert (await store.scan(Selector())).records == []
        with pytest.raises(ConfigError, match="confined to other tenants"):
            await store.insert([of("acme", queue)])
    assert ask(acme, "SELECT * FROM {s}.jobs_v1") == []


@pytest.mark.parametrize("part", ["worker", "janitor"])
async def test_who_sees_all_tenants_cannot_be_confined(acme: str, part: str) -> None:
    with pytest.raises(ConfigError, match=f"a {part} sees the jobs of all tenants"):
        await grant(part, acme)
    role = await grant(part, login("free"))
    with pytest.raises(ConfigError, match=f"a {part} sees the jobs of all tenants"):
        await grant("reader", role, "acme")
    group = await grant(part, login("group", "NOLOGIN"))
    superuser("GRANT {} TO {}", group, acme)
    with pytest.raises(ConfigError, match=f"it is a member of .*, and a {part} sees the jobs of all tenants"):
        await grant("reader", acme, "acme", "b")
    superuser("REVOKE {} FROM {}", group, acme)


async def test_there_is_no_way_out_through_another_role(acme: str) -> None:
    free = await grant("producer", login("free", "NOLOGIN"))
    superuser("GRANT {} TO {}", free, acme)
    with pytest.raises(ConfigError, match=f"it is a member of .*{free}.*, which is not confined"):
        await grant("reader", acme, "acme")
    superuser("REVOKE {} FROM {}", free, acme)
    with pytest.raises(ConfigError, match="it is a superuser"):
        await grant("reader", login("mighty", "LOGIN SUPERUSER"), "acme")
    child = login("child")
    superuser("GRANT {} TO {}", OWNER, child)
    with pytest.raises(ConfigError, match="a member of the owner"):
        await grant("reader", child, "acme")


def test_tenants_are_names() -> None:
    role = login("odd")
    for tenants in ("'{{}}'", "ARRAY[NULL]::text[]"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="expected names of tenants"):
            ask(OWNER, "SELECT {s}.confine_v1(%s, " + tenants + ")", role)  # type: ignore[arg-type]


# -- the views


async def test_every_job_is_in_the_view_once(roles: dict[str, str], queue: str) -> None:
    jobs = await Jobs(queue).make()
    async with opened() as store:
        cancelled = row(next(_numbers), queue=queue)
        await store.insert([cancelled])
        await store.alter(Selector(ids=[cancelled.id]), Cancel("not wanted"))
    states = "SELECT state, count(*) FROM {s}.jobs_v1 WHERE queue = %s GROUP BY 1 ORDER BY 1"
    assert ask(roles["reader"], states, queue) == [
        (state, 1) for state in ("available", "cancelled", "completed", "failed", "paused", "running")
    ]
    failed = "SELECT id, reason, attempt FROM {s}.jobs_v1 WHERE state = 'failed' AND queue = %s"
    assert ask(roles["reader"], failed, queue) == [(UUID(bytes=jobs.failed), "broken", 0)]
    counters = "SELECT available, running, jobs_paused, completed, cancelled, failed FROM {s}.queues_v1 WHERE name = %s"
    assert ask(roles["reader"], counters, queue) == [(1, 1, 1, 1, 1, 1)]


async def test_the_view_tells_what_the_store_tells(roles: dict[str, str], queue: str) -> None:
    one = row(next(_numbers), queue=queue, tenant="acme", key="k", priority=-3, expires=90 * SECOND, max_attempts=4)
    async with opened() as store:
        await store.insert([one], 1_800_000_000_000_001)
        await store.renew(Beat("secret", "worker-1", (queue,), LEASE))
        await store.claim(Claim("secret", (queue,), 1, LEASE), 1_800_000_000_000_002)
        [record] = await store.fetch([one.id])
    assert record is not None
    [found] = ask(
        roles["reader"],
        "SELECT id, queue, task, state, tenant, key, priority, attempt, lost, max_attempts, worker, reason, error,"
        " (extract(epoch FROM enqueued_at) * 1000000)::bigint, (extract(epoch FROM run_at) * 1000000)::bigint,"
        " (extract(epoch FROM expires_at) * 1000000)::bigint, finished_at,"
        " (extract(epoch FROM lease_until) * 1000000)::bigint FROM {s}.jobs_v1 WHERE queue = %s",
        queue,
    )
    assert found == (
        UUID(bytes=one.id), queue, "t", "running", "acme", "k", -3, 0, 0, 4, "worker-1", None, None, record.enqueued_at,
        record.run_at, record.expires_at, None, record.lease_until,
    )  # fmt: skip
    assert "secret" not in str(ask(roles["reader"], "SELECT j::text FROM {s}.jobs_v1 AS j WHERE queue = %s", queue))


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        (msgspec.msgpack.encode([Failure("ValueError", "no card")]), "ValueError: no card"),
        (msgspec.msgpack.encode([Failure("A", "old", 1, 5), Failure("B", "new", 300, 2**40, "T" * 8000)]), "B: new"),
        (msgspec.msgpack.encode([Failure("E", "ü" * 2_000, 1, -7)]), "E: " + "ü" * 2_000),
        (msgspec.msgpack.encode([Failure("E", "x" * 200, 70_000)] * 5), "E: " + "x" * 200),
        (msgspec.msgpack.encode([Failure("Fail", "")]), "Fail"),
        (msgspec.msgpack.encode([]), None),
        (b"", None),
        (b"free text", None),
        (b"\x91", None),
        (b"\x91\x81\xa4type\xd9\xff", None),
        (b"\x91\x81\xa4type\xc0", None),
        (b"\x91\x81\xa4type\xa2\xff\xff", None),
    ],
)
async def test_an_error_is_told_where_it_can_be(queue: str, stored: bytes, told: str | None) -> None:
    async with opened() as store:
        await store.insert([row(next(_numbers), queue=queue)])
        [job] = (await store.claim(Claim("w", (queue,), 1, LEASE))).jobs
        await store.finish([Settlement(job.id, job.epoch, "w", JobState.FAILED, error=stored)])
    assert ask(OWNER, "SELECT error FROM {s}.jobs_v1 WHERE queue = %s", queue) == [(told,)]


async def test_the_error_of_a_handler_is_told(roles: dict[str, str], queue: str) -> None:
    app = App(f"{url(roles['worker'])}?schema={quote(SCHEMA)}")

    @app.task(queue=queue, retry=never())
    async def charge() -> None:
        raise ValueError("no card")

    work = asyncio.ensure_future(app.work())
    with pytest.raises(JobFailed):
        await charge.call()
    app.stop()
    await work
    await app.client.close()
    query = "SELECT state, error FROM {s}.jobs_v1 WHERE queue = %s"
    assert ask(roles["reader"], query, queue) == [("failed", "ValueError: no card")]


def test_a_condition_on_the_state_leaves_other_places_alone(roles: dict[str, str]) -> None:
    def plan(state: str) -> str:
        return str(ask(OWNER, "EXPLAIN SELECT * FROM {s}.jobs_v1 WHERE state = '" + state + "'"))  # type: ignore[arg-type]

    assert [place in plan("failed") for place in (" ready", " leased", " paused", " ended")] == [False] * 3 + [True]
    assert [place in plan("running") for place in (" ready", " leased", " paused", " ended")] == [
        False,
        True,
        False,
        False,
    ]
