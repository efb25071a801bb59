"""Errors of PostgreSQL that come and go while everybody works: each leaves the server as it was."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, LiteralString, NamedTuple

from psycopg import AsyncConnection, sql

FLICKER = 0.25
"""Seconds between a change and its end, where one comes and goes several times."""
_PASSED_ON = (
    "claim_v1", "complete_and_claim_v1", "complete_v1", "finish_v1", "insert_one_v1", "insert_v1", "renew_v1",
    "seal_v1",
)  # fmt: skip
"""What workers and producers call all the time."""
_BODY = re.compile(r"LANGUAGE \w+(.*)AS \$function\$.*\$function\$", re.DOTALL)


class Function(NamedTuple):
    """One on the server, and how to make it again."""

    oid: int
    name: str
    arguments: str
    """Their types."""
    count: int
    made_by: str


class Server:
    """The server, as its superuser sees it: the troubles of others are not its own."""

    def __init__(self, connection: AsyncConnection[Any], role: str, grant: Callable[[], Awaitable[None]]) -> None:
        self._connection = connection
        self.role = sql.Identifier(role)
        self._name = role
        self.grant = grant
        """Gives the role again what it had."""

    async def do(self, said: LiteralString | sql.Composable | str) -> list[Any]:
        cursor = await self._connection.execute(said.encode() if isinstance(said, str) else said)
        return await cursor.fetchall() if cursor.description else []

    async def set(self, setting: LiteralString, value: LiteralString | None) -> None:
        """Of the whole server, for sessions that are there too."""
        change = "RESET " + setting if value is None else f"SET {setting} = '{value}'"
        await self.do(f"ALTER SYSTEM {change}")
        await self.do("SELECT pg_reload_conf()")

    async def end_sessions(self) -> None:
        """Of everybody else."""
        await self.do(
            sql.SQL("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = {}").format(self._name)
        )

    async def functions(self) -> list[Function]:
        names = sql.SQL(", ").join(map(sql.Literal, _PASSED_ON))
        found = await self.do(
            sql.SQL(
                "SELECT oid, proname, pg_get_function_identity_arguments(oid), pronargs, pg_get_functiondef(oid)"
                " FROM pg_proc WHERE pronamespace = 'headrace'::regnamespace AND proname IN ({})"
            ).format(names)
        )
        return [Function(*row) for row in found]


Trouble = Callable[[Server, float], Awaitable[None]]


@asynccontextmanager
async def _flickering(
    lasting: float, on: Callable[[], Awaitable[None]], off: Callable[[], Awaitable[None]]
) -> AsyncIterator[None]:
    for _ in range(max(2, int(lasting / (2 * FLICKER)))):
        await on()
        await asyncio.sleep(FLICKER)
        await off()
        await asyncio.sleep(FLICKER)
    yield


async def transactions_end(server: Server, lasting: float) -> None:
    """25P04: no transaction may last longer than a moment."""
    name: LiteralString = "transaction_timeout"
    async with _flickering(lasting, lambda: server.set(name, "1ms"), lambda: server.set(name, None)):
        return


async def idle_transactions_end(server: Server, lasting: float) -> None:
    """25P03: none may wait for its next statement."""
    await server.set("idle_in_transaction_session_timeout", "1ms")
    await asyncio.sleep(lasting)
    await server.set("idle_in_transaction_session_timeout", None)


async def sessions_end(server: Server, lasting: float) -> None:
    """57P01."""
    async with _flickering(lasting, server.end_sessions, lambda: asyncio.sleep(0)):
        return


async def functions_fail(server: Server, lasting: float) -> None:
    """XX000, as functions say while their tables are being changed."""
    functions = await server.functions()
    failing = r"LANGUAGE plpgsql\1AS $$ BEGIN RAISE 'tuple concurrently updated' USING ERRCODE = 'XX000'; END $$"

    async def fail() -> None:
        for function in functions:
            await server.do(_BODY.sub(failing, function.made_by))

    async def heal() -> None:
        for function in functions:
            await server.do(function.made_by)

    async with _flickering(lasting, fail, heal):
        return


async def functions_go(server: Server, lasting: float) -> None:
    """42883 and then 42501: a deployment that makes the functions anew, and says only afterwards who may call them."""
    functions = await server.functions()

    async def drop() -> None:
        for function in functions:
            await server.do(f"DROP FUNCTION headrace.{function.name}({function.arguments})")

    async def make() -> None:
        for function in functions:
            await server.do(function.made_by)
            await server.do(
                f"REVOKE ALL ON FUNCTION headrace.{function.name}({function.arguments}) FROM PUBLIC"
            )  # fmt: skip
        await asyncio.sleep(FLICKER)
        await server.grant()

    async with _flickering(lasting, drop, make):
        return


async def plans_change(server: Server, lasting: float) -> None:
    """0A000: what a function answers gets another shape, and its old one again; every session remembers the first."""
    [[columns]] = await server.do(
        "SELECT string_agg(format('%I %s', attname, format_type(atttypid, atttypmod)), ', ' ORDER BY attnum)"
        " FROM pg_attribute WHERE attrelid = 'headrace.answer'::regclass AND attnum > 0"
    )
    functions = [one for one in await server.functions() if re.search(r"SETOF (headrace\.)?answer", one.made_by)]

    async def widen() -> None:
        for one in functions:
            given = ", ".join(f"${number}" for number in range(1, one.count + 1))
            [[types]] = await server.do(
                "SELECT string_agg(format_type(type, NULL), ', ' ORDER BY place) FROM pg_proc,"
                f" unnest(proargtypes::oid[]) WITH ORDINALITY AS given (type, place) WHERE pg_proc.oid = {one.oid}"
            )
            await server.do(
                f"ALTER FUNCTION headrace.{one.name}({one.arguments}) RENAME TO {one.name}_narrow;"
                f"CREATE FUNCTION headrace.{one.name}({types}) RETURNS TABLE ({columns}, spare integer)"
                f" LANGUAGE sql SECURITY DEFINER AS 'SELECT *, NULL::integer FROM headrace.{one.name}_narrow({given})'"
            )

    async def narrow() -> None:
        for one in functions:
            await server.do(
                f"DROP FUNCTION headrace.{one.name};"
                f"ALTER FUNCTION headrace.{one.name}_narrow({one.arguments}) RENAME TO {one.name}"
            )

    async with _flickering(lasting, widen, narrow):
        return


async def rights_go(server: Server, lasting: float) -> None:
    """42501."""
    await server.do(sql.SQL("REVOKE USAGE ON SCHEMA headrace FROM {}").format(server.role))
    await asyncio.sleep(lasting)
    await server.do(sql.SQL("GRANT USAGE ON SCHEMA headrace TO {}").format(server.role))


async def statements_end(server: Server, lasting: float) -> None:
    """57014, by a setting of the role: sessions that begin meanwhile go by it for as long as they live."""
    await server.do(sql.SQL("ALTER ROLE {} SET statement_timeout = '2ms'").format(server.role))
    await server.end_sessions()
    await asyncio.sleep(lasting)
    await server.do(sql.SQL("ALTER ROLE {} RESET statement_timeout").format(server.role))


TROUBLES: Sequence[Trouble] = (
    transactions_end, idle_transactions_end, sessions_end, functions_fail, functions_go, plans_change, rights_go,
    statements_end,
)  # fmt: skip
SAID = (
    "due to transaction timeout", "due to idle-in-transaction timeout", "due to administrator command",
    "tuple concurrently updated", "does not exist", "cached plan must not change", "permission denied for schema",
    "due to statement timeout",
)  # fmt: skip
"""What the server says to whoever meets each."""
