"""What a program is connected with already, handed in instead of a URL."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from ssl import TLSVersion, create_default_context
from typing import Any

import asyncpg
import psycopg
import psycopg_pool
import pytest
import redis
import redis.asyncio
import redis.sentinel
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from headrace import App, JobState, connect
from headrace.api.foreign import url_of
from headrace.errors import ConfigError
from tests import postgres, valkey

Pool = partial(psycopg_pool.ConnectionPool, open=False)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        (redis.Redis(), "redis://localhost:6379/0"),
        (redis.asyncio.Redis(host="h", port=7, db=3), "redis://h:7/3"),
        (redis.Redis(host="::1", password="a/b@c"), "redis://:a%2Fb%40c@[::1]:6379/0"),
        (redis.Redis(username="ada", password="x", ssl=True), "rediss://ada:x@localhost:6379/0"),
        (redis.Redis(ssl=True, ssl_ca_certs="/ca.pem"), "rediss://localhost:6379/0?ca=%2Fca.pem"),
        (redis.Redis(ssl=True, ssl_cert_reqs="none"), "rediss://localhost:6379/0?verify=no"),
        (redis.Redis(unix_socket_path="/run/valkey.sock", db=2), "redis+unix:///run/valkey.sock?database=2"),
        (redis.Redis.from_url("rediss://:p@h:1/2"), "rediss://:p@h:1/2"),
        (
            Pool("host=db dbname=shop user=ada", kwargs={"password": "p w", "autocommit": True}),
            "postgresql://ada:p%20w@db/shop",
        ),
        (Pool("postgresql://ada@db:7/shop?sslmode=require"), "postgresql://ada@db:7/shop?sslmode=require"),
        (Pool("host=/run/pg,other dbname=shop"), "postgresql:///shop?host=%2Frun%2Fpg%2Cother"),
        (psycopg_pool.NullConnectionPool("dbname=shop", open=False), "postgresql:///shop"),
        (psycopg_pool.AsyncConnectionPool("dbname=shop", open=False), "postgresql:///shop"),
        (sqlalchemy.create_engine("sqlite:///jobs.db"), "sqlite:///jobs.db"),
        (sqlalchemy.create_engine("postgresql+psycopg://a:b%40@db:9/shop"), "postgresql://a:b%40@db:9/shop"),
        (create_async_engine("postgresql+asyncpg://db/shop"), "postgresql://db/shop"),
        (create_async_engine("postgresql+asyncpg://db/shop?ssl=require"), "postgresql://db/shop?sslmode=require"),
        (
            sqlalchemy.create_engine(
                "postgresql+psycopg://db/shop",
                connect_args={"sslmode": "verify-full", "connect_timeout": 3, "prepare_threshold": None},
            ),
            "postgresql://db/shop?sslmode=verify-full&connect_timeout=3",
        ),
        (
            sqlalchemy.create_engine("sqlite:///jobs.db", connect_args={"check_same_thread": False}),
            "sqlite:///jobs.db",
        ),
    ],
    ids=range(19),
)
def test_settings_are_read(given: Any, url: str) -> None:
    assert url_of(given) == url
    assert connect(given).settings.url == url


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (redis.Redis(username="ada"), "a user without one"),
        (redis.sentinel.Sentinel([("h", 1)]).master_for("m"), r"redis\+sentinel://"),
        (redis.Redis(credential_provider=redis.UsernamePasswordCredentialProvider("a", "b")), "credential_provider"),
        (Pool(lambda: "host=db"), "made by a function"),
        (
            Pool("dbname=shop", configure=print),
            "ConnectionPool leads .* a URL: what its configure= does cannot be carried over",
        ),
        (redis.Redis(ssl=True, ssl_min_version=TLSVersion.TLSv1_3), "its ssl_min_version cannot be carried over"),
        (sqlalchemy.create_engine("sqlite://"), "memory://"),
        (sqlalchemy.create_engine("sqlite:///file:jobs.db?mode=ro&uri=true"), "a URI of SQLite's own"),
        (sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: None), "connected by a function"),
        (
            create_async_engine("postgresql+asyncpg://db/shop", connect_args={"ssl": create_default_context()}),
            "its ssl cannot be carried over",
        ),
        (sqlalchemy.create_engine("postgresql+psycopg:///shop?host=a&host=b"), "its host cannot be carried over"),
        (object(), "expected text like sqlite:///jobs.db"),
        (7, "expected text like sqlite:///jobs.db"),
    ],
    ids=range(13),
)
def test_what_cannot_be_read_is_told(given: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        App(given)


def test_an_engine_whose_login_a_function_makes_is_refused() -> None:
    """The way to a password that changes, as clouds have it."""
    engine = sqlalchemy.create_engine("postgresql+psycopg://ada@db/shop")
    sqlalchemy.event.listen(engine, "do_connect", lambda *given: None)
    with pytest.raises(ConfigError, match="connected by a function"):
        App(engine)


async def test_connections_are_refused(tmp_path: Path) -> None:
    """A single connection is for ``bind``."""
    with psycopg.connect(postgres.server().url()) as connection, pytest.raises(ConfigError, match=r"app\.bind"):
        App(connection)  # type: ignore[arg-type]
    other = await asyncpg.connect(postgres.server().url())
    with pytest.raises(ConfigError, match=r"app\.bind"):
        App(other)  # type: ignore[arg-type]
    await other.close()


async def test_a_store_is_found(tmp_path: Path) -> None:
    """Through a client, a pool and an engine of real servers."""
    server = valkey.server()
    server.call("FLUSHALL")
    pg = postgres.server().url()
    for given in (
        redis.Redis(host="127.0.0.1", port=server.port),
        Pool(pg),
        sqlalchemy.create_engine(pg.replace("postgresql:", "postgresql+psycopg:")),
        sqlalchemy.create_engine(f"sqlite:///{tmp_path}/jobs.db"),
    ):
        app = App(given)

        @app.task(name="note")
        def note() -> None: ...

        async with app:
            assert (await note.enqueue()).state is JobState.AVAILABLE
