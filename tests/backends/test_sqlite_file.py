"""The SQLite file: whose it is, how it is opened, what happens when it is damaged, full or read-only."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
from collections import namedtuple
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import apsw
import pytest

from headrace.backends.sqlite import SqliteBackend, disk_space, schema
from headrace.backends.sqlite.statements import migrations
from headrace.errors import ConfigError, Corrupt, HeadraceError, SchemaMismatch, StoreFull, Unavailable
from headrace.seam.records import Claim, InsertStatus, Settlement, SweepClause, SweepTarget
from headrace.seam.ticks import Drop, Look, Save, ScheduleSelector, TickOutcome
from headrace.testing.conformance.base import HOUR, LEASE, SECOND, T0, job_id, row
from headrace.testing.conformance.ticks import fires, moved, schedule
from headrace.types import JobState

PATIENCE = 60.0
spawn = get_context("spawn")


async def opened(path: Path, **options: object) -> SqliteBackend:
    backend = SqliteBackend(path, **options)  # type: ignore[arg-type]
    await backend.open()
    return backend


def look(path: Path, sql: str) -> object:
    connection = apsw.Connection(str(path))
    try:
        return connection.execute(sql).get
    finally:
        connection.close()


# -- which journal


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ("3.6.23", False), ("3.7.0", False), ("3.40.1", False), ("3.44.5", False), ("3.44.6", True), ("3.44.10", True),
        ("3.45.0", False), ("3.50.6", False), ("3.50.7", True), ("3.51.0", False), ("3.51.2", False),
        ("3.51.3", True), ("3.52.0", True), ("3.54.1", True), ("4.0.0", True), ("3.51", False),
    ],
)  # fmt: skip
def test_the_write_ahead_log_is_used_only_where_it_is_safe(version: str, safe: bool) -> None:
    assert schema.wal_is_safe(version) is safe


@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("normal", 1)])
async def test_durability_is_what_it_says(tmp_path: Path, durability: str, synchronous: int) -> None:
    backend = await opened(tmp_path / "jobs.db", durability=durability)
    try:
        modes = await backend._write(
            lambda tx, _: [tx.one("PRAGMA journal_mode")[0], tx.one("PRAGMA synchronous")[0]], T0
        )
        assert modes == ["wal", synchronous]
        assert "power failure" in backend.limits.durable
        assert backend.sibling().limits == backend.limits
    finally:
        await backend.close()


def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="durability"):
        SqliteBackend(tmp_path / "jobs.db", durability="maybe")  # type: ignore[arg-type]


async def test_an_unsafe_sqlite_gets_a_rollback_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.40.1")
    one = await opened(tmp_path / "jobs.db", durability="normal")
    two = one.sibling()
    await two.open()
    try:
        assert "power failure" in one.limits.durable
        modes = await one._write(lambda tx, _: [tx.one("PRAGMA journal_mode")[0], tx.one("PRAGMA synchronous")[0]], T0)
        assert modes == ["truncate", 2]
        calls = [side.insert([row(2 * n + k)]) for n in range(20) for k, side in enumerate((one, two))]
        reads = [side.fetch([job_id(n)]) for n in range(20) for side in (one, two)]
        answers = await asyncio.gather(*calls, *reads)
        assert [a.status for [a] in answers[:40]] == [InsertStatus.NEW] * 40  # type: ignore[union-attr]
        jobs = (await two.claim(Claim("w", ("q",), 100, LEASE))).jobs
        assert len(jobs) == 40
    finally:
        await one.close()
        await two.close()


# -- whose file it is


async def test_a_fresh_file_is_marked_as_ours(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    await (await opened(path)).close()
    assert look(path, "PRAGMA application_id") == schema.APPLICATION_ID
    assert look(path, "PRAGMA user_version") == len(migrations())
    assert look(path, "PRAGMA integrity_check") == "ok"


@pytest.mark.parametrize("version", range(1, len(migrations())))
async def test_an_older_file_is_brought_up_to_date_with_its_jobs(tmp_path: Path, version: int) -> None:
    path = tmp_path / "jobs.db"
    connection = apsw.Connection(str(path))
    for script in migrations()[:version]:
        connection.execute(script).fetchall()
    connection.pragma("user_version", version)
    connection.pragma("application_id", schema.APPLICATION_ID)
    connection.execute("INSERT INTO queues (qid, name, available) VALUES (1, 'q', 1)")
    connection.execute(
        "INSERT INTO jobs (seq, id, qid, lane, priority, run_at, task, tenant, enqueued_at, far, parameters) "
        "VALUES (1, ?1, 1, 1, 0, ?2, 't', '', ?2, 0, x'7b7d')",
        (job_id(1), T0),
    )
    connection.execute("INSERT INTO ready VALUES (1, 0, ?2, ?1, 1, 0, 0, 0, 200, NULL, 0)", (job_id(1), T0))
    connection.close()
    backend = await opened(path)
    try:
        assert await backend.ticks.save([Save(schedule(1, last_job=job_id(1)), 0)], T0) == [True]
        [due] = (await backend.ticks.due(Look(), T0)).schedules
        assert await backend.ticks.plan([moved(due, fires(T0, 2))], T0) == [[TickOutcome.FIRED]]
        assert [job.id for job in (await backend.claim(Claim("w", ("q",), 5, LEASE), T0)).jobs] == [
            job_id(1),
            job_id(2),
        ]
        assert (await backend.sweep(SweepClause(target=SweepTarget.TICKS, max_count=0), T0)).removed == 1
    finally:
        await backend.close()
    assert look(path, "PRAGMA user_version") == len(migrations())
    assert look(path, "PRAGMA integrity_check") == "ok"


async def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE customers (name TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(SchemaMismatch, match=r"another program.*file of its own"):
        await opened(path)
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["app.db"]


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    await (await opened(path)).close()
    look(path, f"PRAGMA user_version = {len(migrations()) + 1}")
    with pytest.raises(SchemaMismatch, match="newer Headrace"):
        await opened(path)


@pytest.mark.parametrize(
    "content", [b"hello, this is a text file\n" * 100, bytes(range(256)) * 32, b"SQLite format 3\0"]
)
async def test_what_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises((SchemaMismatch, Corrupt), match=r"notes\.txt"):
        await opened(path)
    assert path.read_bytes() == content


async def test_a_damaged_store_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    backend = await opened(path)
    await backend.insert([row(n) for n in range(500)])
    await backend.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(Corrupt, match="damaged"):
        await _open_and_fetch(path)


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no directory .*create it"):
        await opened(tmp_path / "nowhere" / "jobs.db")


async def test_a_directory_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be opened"):
        await opened(tmp_path)


def _open_without_rights(path: str, pipe: Connection) -> None:
    if os.geteuid() == 0:
        os.setuid(65_534)

    async def attempt() -> str:
        try:
            await opened(Path(path))
        except HeadraceError as error:
            return f"{type(error).__name__}: {error}"
        return "opened"

    pipe.send(asyncio.run(attempt()))


@pytest.mark.parametrize("lacking", ["file", "directory"])
def test_a_file_that_cannot_be_written_is_refused_with_what_to_do(tmp_path: Path, lacking: str) -> None:
    path = tmp_path / "jobs.db"
    if lacking == "file":
        asyncio.run(_open_and_close(path))
        path.chmod(0o444)
    for directory in (tmp_path, *tmp_path.parents[:3]):
        if directory.stat().st_mode & 0o777 == 0o700:  # pytest's own, closed to others
            directory.chmod(0o755)
    tmp_path.chmod(0o555)
    ours, theirs = spawn.Pipe()
    child = spawn.Process(target=_open_without_rights, args=(str(path), theirs))
    child.start()
    try:
        assert ours.poll(PATIENCE)
        said = ours.recv()
    finally:
        child.join(PATIENCE)
        tmp_path.chmod(0o755)
    if lacking == "file":
        assert said.startswith("ConfigError")
        assert "read-only" in said
    else:
        assert said.startswith("Unavailable")
        assert "cannot be opened" in said


async def _open_and_fetch(path: Path) -> None:
    backend = await opened(path)
    try:
        await backend.fetch([job_id(1)])
    finally:
        await backend.close()


async def _open_and_close(path: Path) -> None:
    await (await opened(path)).close()


async def test_a_file_that_goes_away_while_it_is_open_takes_no_jobs(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    backend = await opened(path)
    try:
        await backend.insert([row(1)])
        path.rename(tmp_path / "elsewhere.db")
        with pytest.raises(Unavailable, match="moved, deleted or replaced"):
            await backend.insert([row(2)])
        (tmp_path / "elsewhere.db").rename(path)
        await backend.insert([row(3)])
        assert [record is not None for record in await backend.fetch([job_id(n) for n in (1, 2, 3)])] == [
            True,
            False,
            True,
        ]
    finally:
        await backend.close()


# -- a full disk


async def _fill(backend: SqliteBackend, first: int) -> int:
    """Insert until the store is full: how many batches went in."""
    for batch in range(1_000):
        try:
            await backend.insert([row(first + batch * 20 + n, cells={"blob": b"x" * 900}) for n in range(20)])
        except StoreFull:
            return batch
    raise AssertionError("it never was full")


async def _pages(backend: SqliteBackend, limit: int) -> None:
    await backend._write(lambda tx, _: tx.one(f"PRAGMA max_page_count = {limit}"), T0)


async def test_a_full_store_refuses_jobs_and_still_ends_them(tmp_path: Path) -> None:
    backend = await opened(tmp_path / "jobs.db")
    try:
        await _pages(backend, 200)
        assert await _fill(backend, 1_000) > 0
        before = await backend.stats()
        for _ in range(5):
            jobs = (await backend.claim(Claim("w", ("q",), 20, LEASE))).jobs
            assert len(jobs) == 20
            ended = [Settlement(job.id, job.epoch, "w", JobState.COMPLETED) for job in jobs]
            assert await backend.finish(ended) == [JobState.COMPLETED] * 20
            swept = await backend.sweep(SweepClause(target=SweepTarget.COMPLETED, max_count=0))
            assert (swept.removed, swept.kept) == (20, 0)
        await backend.insert([row(n, cells={"blob": b"x" * 900}) for n in range(40)])
        [queue] = (await backend.stats()).queues
        assert queue.available == before.queues[0].available - 100 + 40
        await _pages(backend, 1_000_000)
        await backend.insert([row(100 + n, cells={"blob": b"x" * 900}) for n in range(400)])
    finally:
        await backend.close()
    assert look(tmp_path / "jobs.db", "PRAGMA integrity_check") == "ok"


async def test_a_full_store_takes_nothing_by_halves_and_fails_no_neighbour(tmp_path: Path) -> None:
    backend = await opened(tmp_path / "jobs.db")
    try:
        await _pages(backend, 100)
        big = [row(n, cells={"blob": b"x" * 3_000}) for n in range(1_000)]
        answers = await asyncio.gather(
            backend.insert([row(5_000)]), backend.insert(big), backend.insert([row(5_001)]), return_exceptions=True
        )
        assert isinstance(answers[1], StoreFull)
        assert [isinstance(answer, list) for answer in answers] == [True, False, True]
        assert (await backend.stats()).queues[0].available == 2
        assert set(await backend.fetch([job_id(n) for n in range(1_000)])) == {None}
    finally:
        await backend.close()


def _meet_the_file_size_limit(path: str, pipe: Connection) -> None:
    async def run() -> tuple[int, int, int]:
        backend = await opened(Path(path))
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (512 * 1024, hard))
        batches = await _fill(backend, 1_000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        await backend.insert([row(n) for n in range(10)])
        [queue] = (await backend.stats()).queues
        jobs = (await backend.claim(Claim("w", ("q",), 5_000, LEASE))).jobs
        await backend.close()
        return batches, queue.available, len(jobs)

    pipe.send(asyncio.run(run()))


def test_a_file_size_limit_is_a_full_store_and_passes(tmp_path: Path) -> None:
    ours, theirs = spawn.Pipe()
    child = spawn.Process(target=_meet_the_file_size_limit, args=(str(tmp_path / "jobs.db"), theirs))
    child.start()
    assert ours.poll(PATIENCE)
    batches, available, claimed = ours.recv()
    child.join(PATIENCE)
    assert batches > 0
    assert available == claimed == batches * 20 + 10
    assert look(tmp_path / "jobs.db", "PRAGMA integrity_check") == "ok"


async def test_the_last_room_on_the_volume_is_kept_for_work_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = namedtuple("volume", "f_frsize f_blocks f_bavail")
    backend = await opened(tmp_path / "jobs.db")
    try:
        await backend.insert([row(n) for n in range(3)])
        await backend.ticks.save([Save(schedule(1), 0)], T0)
        [known] = await backend.ticks.find(ScheduleSelector())
        monkeypatch.setattr(disk_space, "_GOOD_FOR", 0.0)
        monkeypatch.setattr(os, "statvfs", lambda _: volume(4096, 131_072, 19_000))
        backend._writer._disk._good_until = 0.0  # type: ignore[union-attr]
        refused = asyncio.gather(backend.insert([row(10)]), return_exceptions=True)
        claimed = backend.claim(Claim("w", ("q",), 1, LEASE))
        [error], answer = await asyncio.gather(refused, claimed)
        assert isinstance(error, StoreFull)
        assert "Free some space" in str(error)
        [job] = answer.jobs
        assert await backend.finish([Settlement(job.id, job.epoch, "w", JobState.COMPLETED, spawn=[row(11)])])
        ticks = backend.ticks
        with pytest.raises(StoreFull):
            await ticks.plan([moved(known, fires(T0, 12))], T0)
        with pytest.raises(StoreFull):
            await ticks.save([Save(schedule(2), 0)], T0)
        assert await ticks.find(ScheduleSelector()) == [known]
        assert await ticks.plan([moved(known)], T0) == [[]]
        assert await ticks.save([Save(schedule(1, enabled=False), 2)], T0) == [True]
        assert await ticks.save([Drop(known.name, 3)], T0) == [True]
        monkeypatch.setattr(os, "statvfs", lambda _: volume(4096, 131_072, 20_000))
        assert [a.status for a in await backend.insert([row(10)])] == [InsertStatus.NEW]
    finally:
        await backend.close()


@pytest.mark.parametrize(
    ("blocks", "spare", "refused"),
    [(32_768, 0, False), (32_767, 0, True), (32_767, 2**27, False), (8_192, 2**27, False), (8_191, 2**27, True)],
)
def test_free_pages_of_the_file_count_as_room(
    monkeypatch: pytest.MonkeyPatch, blocks: int, spare: int, refused: bool
) -> None:
    """The reserve of this volume is 128 MiB; a quarter of it is kept even from those who need no new pages."""
    volume = namedtuple("volume", "f_frsize f_blocks f_bavail")
    monkeypatch.setattr(os, "statvfs", lambda _: volume(4096, 2**20, blocks))
    assert (disk_space.DiskSpace("/").refusal(lambda: spare) is not None) is refused


async def test_a_cell_that_is_gone_costs_its_own_job_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    backend = await opened(path)
    try:
        await backend.insert([row(1, cells={"parameters": b"x" * 5_000}), row(2)])
        look(path, "DELETE FROM cells")
        jobs = (await backend.claim(Claim("w", ("q",), 10, LEASE))).jobs
        assert [job.cells for job in jobs] == [{"parameters": b""}, {"parameters": b"{}"}]
        ended = [Settlement(job.id, job.epoch, "w", JobState.FAILED) for job in jobs]
        assert await backend.finish(ended) == [JobState.FAILED] * 2
    finally:
        await backend.close()


# -- size


async def test_the_footprint_stays_flat_when_jobs_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    backend = await opened(path, durability="normal")
    sizes = []
    try:
        for turn in range(12):
            now = T0 + turn * HOUR
            rows = [
                row(turn * 1_000 + n, key=f"k{turn}:{n}", queue=f"q{turn}", cells={"blob": b"b" * (2_000 * (n % 2))})
                for n in range(200)
            ]
            await backend.insert(rows, now)
            jobs = (await backend.claim(Claim("w", (f"q{turn}",), 200, LEASE), now)).jobs
            result = b"r" * 1_500
            ended = [Settlement(j.id, j.epoch, "w", JobState.COMPLETED, result=result, result_ttl=9) for j in jobs]
            await backend.finish(ended, now)
            await backend.sweep(SweepClause(target=SweepTarget.RESULTS), now + SECOND)
            swept = await backend.sweep(SweepClause(target=SweepTarget.COMPLETED, older_than=0), now + SECOND)
            assert swept.removed == 200
            sizes.append(await backend._read(lambda session, _: session.one("PRAGMA page_count")[0], now))
        assert sizes[-1] <= sizes[2] * 1.1
        for table in ("jobs", "cells", "keys", "waiters", "ready", "running", "paused", "ended", "queues"):
            sql = f"SELECT count(*) FROM {table}"
            assert await backend._read(lambda session, _, sql=sql: session.one(sql)[0], now) <= 1, table
        assert (tmp_path / "jobs.db-wal").stat().st_size < 16 * 1024 * 1024
    finally:
        await backend.close()
    assert sorted(os.listdir(tmp_path)) == ["jobs.db", "jobs.db-latch"]


async def test_the_footprint_stays_flat_when_schedules_and_ticks_come_and_go(tmp_path: Path) -> None:
    backend = await opened(tmp_path / "jobs.db", durability="normal")
    ticks = backend.ticks
    sizes = []
    try:
        for turn in range(8):
            now = T0 + turn * HOUR
            big = [schedule(n, definition=b"d" * 2_000, look_at=now) for n in range(100)]
            await ticks.save([Save(one, 0) for one in big], now)
            await ticks.save([Save(one, 1) for one in big], now)
            due = (await ticks.due(Look(), now)).schedules
            plans = [moved(one, *(fires(now + n, one.uid[-1] * 10 + n) for n in range(10))) for one in due]
            assert await ticks.plan(plans, now) == [[TickOutcome.FIRED] * 10] * 100
            jobs = (await backend.claim(Claim("w", ("q",), 1_000, LEASE), now + SECOND)).jobs
            await backend.finish([Settlement(j.id, j.epoch, "w", JobState.COMPLETED, keep=False) for j in jobs], now)
            assert await ticks.save([Drop(one.name, 3) for one in big], now) == [True] * 100
            assert (await backend.sweep(SweepClause(target=SweepTarget.TICKS, older_than=0), now)).removed == 1_000
            sizes.append(await backend._read(lambda session, _: session.one("PRAGMA page_count")[0], now))
        assert sizes[-1] <= sizes[2] * 1.1
        for table in ("jobs", "cells", "schedules", "ticks"):
            sql = f"SELECT count(*) FROM {table}"
            assert await backend._read(lambda session, _, sql=sql: session.one(sql)[0], now) == 0, table
        assert {(place.count, place.bytes) for place in (await backend.stats(now)).kept} == {(0, 0)}
    finally:
        await backend.close()


async def test_the_log_is_copied_and_begun_anew(tmp_path: Path) -> None:
    backend = await opened(tmp_path / "jobs.db", durability="normal")
    try:
        for n in range(40):
            await backend.insert([row(n, cells={"blob": bytes(1_000_000)})])
        log = (tmp_path / "jobs.db-wal").stat().st_size
        assert log <= schema.CHECKPOINT_PAGES * 4096 + 4_000_000
    finally:
        await backend.close()
