"""What ``app.bind`` makes of each kind of connection, as a type checker sees it; never run, only checked."""

from __future__ import annotations

from typing import Any, assert_type

import asyncpg
import psycopg
from django.db import connections
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from headrace import App, AsyncBound, Bound, Handle, Job, NewJob

app = App("postgresql://localhost/shop")


@app.task(queue="mail")
async def welcome(user_id: int, template: str = "hello") -> str:
    return template


@app.batch
async def index(jobs: list[Job[str]]) -> None: ...


def blocking(
    plain: psycopg.Connection, rows: psycopg.Connection[dict[str, Any]], one: Connection, session: Session,
    scoped: scoped_session[Session],
) -> None:  # fmt: skip
    assert_type(app.bind(plain), Bound)
    assert_type(app.bind(rows), Bound)
    assert_type(app.bind(one), Bound)
    assert_type(app.bind(session), Bound)
    assert_type(app.bind(scoped), Bound)


async def awaited(
    plain: psycopg.AsyncConnection, rows: psycopg.AsyncConnection[dict[str, Any]], one: AsyncConnection,
    session: AsyncSession, scoped: async_scoped_session[AsyncSession],
) -> None:  # fmt: skip
    assert_type(app.bind(plain), AsyncBound)
    assert_type(app.bind(rows), AsyncBound)
    assert_type(app.bind(one), AsyncBound)
    assert_type(app.bind(session), AsyncBound)
    assert_type(app.bind(scoped), AsyncBound)


def untyped(one: asyncpg.Connection) -> None:
    """Whose packages are not marked as typed."""
    assert_type(app.bind(one), AsyncBound)
    assert_type(app.bind(connections["default"]), Any)


def wrong() -> None:
    app.bind("postgresql://localhost/shop")  # type: ignore[call-overload]
    app.bind(None)  # type: ignore[call-overload]


def calls(bound: Bound, job: Job[None], new: NewJob) -> None:
    assert_type(bound.enqueue(welcome, 1), Handle[str])
    assert_type(bound.enqueue(welcome.options(key="a"), user_id=1, template="b"), Handle[str])
    assert_type(bound.enqueue(index, "word"), Handle[Any])
    assert_type(bound.enqueue_many([new, welcome.job(2)]), list[Handle[Any]])
    assert_type(bound.complete(job), None)
    bound.complete(job, {"any": "result"})
    bound.enqueue(welcome, "one")  # type: ignore[call-overload]
    bound.enqueue(welcome)  # type: ignore[call-overload]
    bound.enqueue(index, 7)  # type: ignore[misc]
    bound.enqueue("welcome", 1)  # type: ignore[call-overload]


async def awaited_calls(bound: AsyncBound, job: Job[None], new: NewJob) -> None:
    assert_type(await bound.enqueue(welcome, 1), Handle[str])
    assert_type(await bound.enqueue(index, "word"), Handle[Any])
    assert_type(await bound.enqueue_many([new]), list[Handle[Any]])
    assert_type(await bound.complete(job, 7), None)
    await bound.enqueue(welcome, "one")  # type: ignore[call-overload]
