"""Where pairs of statements meet: a server, three sessions, and scenes that are set up in no time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import LiteralString, Protocol

import psycopg
from psycopg import sql
from psycopg.errors import SerializationFailure

from headrace.backends.postgres import PostgresBackend
from headrace.backends.statements import read
from headrace.errors import Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import JobKey
from tests.backends.interleaving.model import Outcome
from tests.backends.interleaving.scenes import DAY, NEXT_DAY, NOW, Scene
from tests.backends.interleaving.session import Paired, Session, within
from tests.backends.interleaving.statements import Facts, Statement
from tests.backends.interleaving.view import Traces, by_strand, view
from tests.postgres import server

_SQL = read(__package__, "stage") | read(__package__, "truth")


class Setting(Protocol):
    """How jobs came to be what a play begins with. It can be told from others."""

    @property
    def build(self) -> Callable[[Backend], Awaitable[None]]:
        """Makes them, on an empty store."""
        ...


class Stage:
    """A store of its own schema. ``first`` has a transaction open while ``second`` works; ``third`` may keep either
    from going on; ``watch`` looks on."""

    first: Session
    second: Session
    third: Session
    watch: Session

    def __init__(self, schema: str = "pairs") -> None:
        self.schema = schema
        self._clear = ""
        self._settings: dict[Setting, str] = {}

    async def open(self) -> None:
        """Make the store. Nothing vacuums it: a day that is being vacuumed is left alone by whoever drops days."""
        self._autovacuum("SET autovacuum = off")
        store = PostgresBackend(server().url(), schema=self.schema)
        await store.open()
        await store.close()
        self.first, self.second, self.third, self.watch = [await Session.connect(self.schema) for _ in range(4)]
        self._sql = {name: self._filled(text) for name, text in _SQL.items()}
        await self.watch.say(self._sql["scenes"])
        self._tables = [name for [name] in await self.watch.ask(self._sql["tables"])]
        self._clear = "".join(f"DELETE FROM {name};" for name in self._tables)
        await self.watch.say(f"SELECT {self.schema}_scenes.set_days()")

    async def close(self) -> None:
        """Remove the store."""
        await self.watch.say(f"DROP SCHEMA {self.schema}, {self.schema}_scenes CASCADE")
        for session in (self.first, self.second, self.third, self.watch):
            await session.connection.close()
        self._autovacuum("RESET autovacuum")

    def _autovacuum(self, change: LiteralString) -> None:
        with psycopg.connect(server().url(), autocommit=True) as connection:
            connection.execute(sql.SQL("ALTER SYSTEM ") + sql.SQL(change))
            connection.execute("SELECT pg_reload_conf()")

    def _filled(self, text: str) -> str:
        for name, value in (("schema", self.schema), ("day", DAY), ("next_day", NEXT_DAY), ("now", NOW)):
            text = text.replace(f"{{{name}}}", str(value))
        return text

    async def set(self, setting: Setting) -> None:
        """All is as at its beginning, and nothing else is there."""
        if setting not in self._settings:
            await self.clear()
            await setting.build(self.watch.store)
            self._settings[setting] = await self._kept(f"{self.schema}_scenes", len(self._settings))
        await self.watch.ask(self._settings[setting])

    async def clear(self) -> None:
        """Nothing is there."""
        await self.watch.say(self._clear)

    @asynccontextmanager
    async def fault(self, function: str, right: str, wrong: str) -> AsyncIterator[None]:
        """Within the block, a function of the store has something wrong in it."""
        [[definition]] = await self.watch.ask(f"SELECT pg_get_functiondef('{self.schema}.{function}'::regproc)")
        if right not in definition:
            raise ValueError(f"{function} does not say {right!r} any more: plant the fault where that is done now")
        await self.watch.say(definition.replace(right, wrong))
        try:
            yield
        finally:
            await self.watch.say(definition)

    async def _kept(self, schema: str, number: int) -> str:
        """Keep all rows; the statement that brings them back."""
        back = []
        for name in self._tables:
            if await self.watch.ask(f"SELECT 1 FROM {name} LIMIT 1"):
                await self.watch.say(f"CREATE TABLE {schema}.{name}_{number} AS TABLE {name}")
                back.append(
                    f"INSERT INTO {name} OVERRIDING SYSTEM VALUE TABLE {schema}.{name}_{number} ON CONFLICT DO NOTHING;"
                )
        await self.watch.say(
            f"CREATE FUNCTION {schema}.set_{number}() RETURNS void LANGUAGE plpgsql AS"
            f" $$ BEGIN {self._clear} PERFORM {schema}.set_days(); {''.join(back)} END $$"
        )
        return f"SELECT {schema}.set_{number}()"

    async def play(
        self, scene: Scene, first: Statement, second: Statement, *, commit: bool
    ) -> tuple[Outcome, list[str]]:
        """The second statement comes while the first is done but not committed; what came of it, and what is wrong with
        the store."""
        await self.set(scene)
        for session in (self.first, self.second):
            session.store.ear.told.clear()
        async with asyncio.TaskGroup() as group:
            await self.first.say("BEGIN")
            try:
                begun = await within(first.run(self.first.store, scene))
                work = group.create_task(_done(second, self.second.store, scene))
                waited = await within(self.watch.until_stuck(self.second.pid, work))
            finally:
                await self.first.say("COMMIT" if commit else "ROLLBACK")
            ended = await within(work)
        wrong, traces = await self.look()
        if isinstance(ended, Exception):
            return Outcome((), {}, waited), [*wrong, f"the second raised {ended!r}"]
        told = [by_strand(ended, self.second.store.ear.told)]
        if commit:
            told.insert(0, by_strand(begun, self.first.store.ear.told))
        return Outcome(tuple(told), await view(self.watch.store, traces), waited), wrong

    async def overtake(
        self, scene: Scene, level: str, first: Statement, second: Statement
    ) -> tuple[Outcome, list[str]]:
        """The second statement comes and goes when a transaction of this isolation level has begun but not yet sent
        the first. The server may refuse the first: then that has told nothing, and nothing of it is there."""
        await self.set(scene)
        for session in (self.first, self.second):
            session.store.ear.told.clear()
        await self.first.say(f"BEGIN ISOLATION LEVEL {level}; SELECT FROM {self.schema}.queues")
        overtaken = await within(second.run(self.second.store, scene))
        told = [by_strand(overtaken, self.second.store.ear.told)]
        try:
            facts = await within(first.run(self.first.store, scene))
            await self.first.say("COMMIT")
            told.insert(0, by_strand(facts, self.first.store.ear.told))
        except (Unavailable, SerializationFailure) as error:
            if not isinstance(error.__cause__ or error, SerializationFailure):
                raise
            await self.first.say("ROLLBACK")
        wrong, traces = await self.look()
        return Outcome(tuple(told), await view(self.watch.store, traces)), wrong

    async def look(self) -> tuple[list[str], Traces]:
        """What is wrong with the store, and what it keeps beside the records. What was asked of jobs that run no more
        is done before, as by a reap."""
        await self.watch.ask(self._sql["asked"])
        [[wrong, jobs, keys, waiters, workers, paused, uids, outlived]] = await self.watch.ask(self._sql["truth"])
        return wrong, Traces(
            jobs,
            [(JobKey(queue, key), bytes.fromhex(name)) for queue, key, name in keys],
            [(bytes.fromhex(name), inbox) for name, inbox in waiters],
            workers,
            paused,
            uids,
            [(JobKey(queue, key), bytes.fromhex(name), int(until)) for queue, key, name, until in outlived],
        )


async def _done(statement: Statement, store: Paired, scene: Scene) -> Facts | Exception:
    """What the statement told. One that the server refuses because of what another has just done is repeated, as the
    core would; a deadlock is never right."""
    try:
        try:
            return await statement.run(store, scene)
        except Unavailable as error:
            if not isinstance(error.__cause__, SerializationFailure):
                return error
            return await statement.run(store, scene)
    except Exception as error:
        return error
