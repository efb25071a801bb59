"""Instants that no calendar has, as an edit past the API or a clock gone wild leaves them, can be read and shown."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from uuid import UUID

import apsw
import psycopg
import pytest
import redis

from headrace.backends.redis.job_layout import JOB
from headrace.seam.instants import to_datetime
from headrace.seam.records import Cancel, Selector
from headrace.testing.conformance.base import job_id, row
from tests import postgres, valkey
from tests.cli.conftest import Run, project, run
from tests.facades.harness import Store

__all__ = ["project", "run"]

EXTREMES = [2**62, 2**63 - 1, -(2**62), -(2**63)]


@pytest.mark.parametrize("instant", EXTREMES)
def test_they_are_shown_as_the_first_or_last_that_there_is(instant: int) -> None:
    shown = to_datetime(instant)
    assert shown.year == (9999 if instant > 0 else 1)
    assert isinstance(shown.astimezone(), datetime)


def plant(store: Store, place: Path, instant: int) -> None:
    match store.kind:
        case "sqlite":
            connection = apsw.Connection(str(place / "jobs.db"))
            connection.execute("UPDATE jobs SET enqueued_at = ?1, run_at = ?1, expires_at = ?1", (instant,))
            connection.execute("UPDATE ended SET finished_at = ?1", (instant,))
            connection.close()
        case "postgres":
            with psycopg.connect(postgres.server().url(), autocommit=True) as connection:
                schema = postgres.SCHEMA
                connection.execute(
                    f"UPDATE {schema}.jobs SET enqueued_at = %(at)s, expires_at = %(at)s", {"at": instant}
                )
                connection.execute(f"UPDATE {schema}.ended SET finished_at = %s, run_at = %s", (instant, instant))
                rows = connection.execute(f"SELECT enqueued_at, expires_at, run_at, finished_at FROM {schema}.jobs_v1")
                assert len(rows.fetchall()) == 1
        case "valkey" if instant > 0:
            with redis.Redis.from_url(valkey.server().url()) as client:
                key = "headrace{jobs}:j"
                job: bytes = client.hget(key, job_id(1))
                _, *others = JOB.unpack_from(job)
                client.hset(key, job_id(1), JOB.pack(instant, *others) + job[JOB.size :])


@pytest.mark.parametrize("instant", EXTREMES)
async def test_a_job_that_has_them_can_be_got_and_listed(store: Store, instant: int, tmp_path: Path) -> None:
    client, backend = store.client(), store.backend()
    await backend.open()
    try:
        await backend.insert([row(1, delay=10**12)])
        await backend.alter(Selector(ids=[job_id(1)]), Cancel())
        plant(store, tmp_path, instant)
        info = await client.get(UUID(bytes=job_id(1)))
        assert info.enqueued_at is not None
        assert [one.id for one in await client.list_jobs(Selector())] == [info.id]
        assert info.to_dict()["run_at"]
    finally:
        await backend.close()


@pytest.mark.parametrize("instant", EXTREMES)
def test_the_command_line_shows_it(run: Run, project: Path, instant: int) -> None:
    run("enqueue", "--url", "sqlite:///jobs.db", "--queue", "q", "t")
    connection = apsw.Connection(str(project / "jobs.db"))
    connection.execute("UPDATE jobs SET enqueued_at = ?1, run_at = ?1, expires_at = ?1", (instant,))
    connection.execute("UPDATE ready SET run_at = ?1", (instant,))
    [[job]] = connection.execute("SELECT id FROM jobs")
    connection.close()
    for command in (
        ("job", "list"),
        ("job", "show", UUID(bytes=job)),
        ("job", "why", UUID(bytes=job)),
        ("queue", "list"),
    ):
        run(*command, "--url", "sqlite:///jobs.db")
        run(*command, "--url", "sqlite:///jobs.db", "--json")
