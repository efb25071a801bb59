"""Several processes on one SQLite file: opening, waking, dying, contending, forking, and other SQLite libraries."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from headrace.backends.sqlite import SqliteBackend
from headrace.errors import ConfigError
from headrace.seam.records import Beat, Claim, Hint, InsertStatus, Reap, Settlement
from headrace.seam.ticks import Drop, Look, Save, Schedule
from headrace.testing.conformance.base import HOUR, LEASE, T0, job_id, row
from headrace.testing.conformance.ticks import fires, moved, schedule
from headrace.types import JobState

PATIENCE = 60.0
BATCH = 25
spawn = get_context("spawn")


class Child:
    """A process that runs ``main(path, pipe)``."""

    def __init__(self, main: Callable[..., Any], path: Path, *args: Any) -> None:
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_run, args=(main, str(path), theirs, *args))
        self.process.start()
        theirs.close()

    def hear(self) -> Any:
        """The next thing it says."""
        assert self.pipe.poll(PATIENCE), "a child process said nothing"
        said = self.pipe.recv()
        if isinstance(said, BaseException):
            raise said
        return said

    def end(self) -> None:
        self.process.join(5)
        self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()


def _run(main: Callable[..., Any], path: str, pipe: Connection, *args: Any) -> None:
    try:
        asyncio.run(main(path, pipe, *args))
    except BaseException as error:
        pipe.send(error)
        raise


def integrity(path: Path) -> object:
    with closing(apsw.Connection(str(path))) as connection:
        return connection.execute("PRAGMA integrity_check").get


# -- opening


async def _open_many(path: str, pipe: Connection, number: int) -> None:
    for attempt in range(6):
        pipe.send("ready")
        pipe.recv()
        backend = SqliteBackend(f"{path}{attempt}")
        await backend.open()
        await backend.insert([row(number)])
        await backend.close()
    pipe.send("done")


def test_processes_that_open_a_fresh_file_at_once_all_succeed(tmp_path: Path) -> None:
    children = [Child(_open_many, tmp_path / "jobs", number) for number in range(3)]
    try:
        for _ in range(6):
            for child in children:
                assert child.hear() == "ready"
            for child in children:
                child.pipe.send("go")
        assert [child.hear() for child in children] == ["done"] * 3
    finally:
        for child in children:
            child.end()
    for attempt in range(6):
        with closing(apsw.Connection(str(tmp_path / f"jobs{attempt}"))) as connection:
            assert connection.execute("SELECT count(*) FROM jobs").get == 3


# -- waking


async def _listen(path: str, pipe: Connection) -> None:
    backend = SqliteBackend(path)
    await backend.open()
    assert backend.hints is not None
    async with backend.hints.listen(["queue:q", "inbox:me"]) as hints:
        pipe.send("listening")
        async for hint in hints:
            pipe.send(hint)
            if hint.topic == "inbox:me":
                break
    await backend.close()


async def test_a_hint_reaches_another_process(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    backend = SqliteBackend(path)
    await backend.open()
    child = Child(_listen, path)
    try:
        assert await asyncio.to_thread(child.hear) == "listening"
        await backend.insert([row(1, queue="other"), row(2, reply_to="me")])
        assert await asyncio.to_thread(child.hear) == Hint("queue:q")
        [job] = (await backend.claim(Claim("w", ("q",), 1, LEASE))).jobs
        await backend.finish([Settlement(job.id, job.epoch, "w", JobState.COMPLETED)])
        assert await asyncio.to_thread(child.hear) == Hint("inbox:me", job_id(2))
    finally:
        child.end()
        await backend.close()
    assert backend.hints is not None
    assert not os.path.exists(backend.hints._directory)


async def _listen_for_schedules(path: str, pipe: Connection) -> None:
    backend = SqliteBackend(path)
    await backend.open()
    assert backend.hints is not None
    async with backend.hints.listen(["schedules:all"]) as hints:
        pipe.send("listening")
        for _ in range(2):
            pipe.send(await anext(hints))
            pipe.send([known.name for known in (await backend.ticks.due(Look(), T0)).schedules])
    await backend.close()


async def test_a_schedule_that_is_saved_or_removed_wakes_the_planners_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    backend = SqliteBackend(path)
    await backend.open()
    child = Child(_listen_for_schedules, path)
    changes: list[tuple[Save | Drop, list[str]]] = [
        (Save(schedule(1), 0), ["s000001"]),
        (Drop("s000001", 1), []),
    ]
    try:
        assert await asyncio.to_thread(child.hear) == "listening"
        assert await backend.ticks.save([Drop("s000001", 7)], T0) == [False]
        for change, due in changes:
            assert await backend.ticks.save([change], T0) == [True]
            assert await asyncio.to_thread(child.hear) == Hint("schedules:all")
            assert await asyncio.to_thread(child.hear) == due
    finally:
        child.end()
        await backend.close()


@pytest.mark.parametrize("by", ["sending", "closing"])
async def test_the_socket_of_a_process_that_was_killed_is_removed(tmp_path: Path, by: str) -> None:
    path = tmp_path / "jobs.db"
    backend = SqliteBackend(path)
    await backend.open()
    child = Child(_listen, path)
    try:
        assert await asyncio.to_thread(child.hear) == "listening"
        assert backend.hints is not None
        sockets = backend.hints._directory
        assert len(os.listdir(sockets)) == 1
        child.process.kill()
        child.process.join()
        if by == "sending":
            await backend.insert([row(1)])
            assert os.listdir(sockets) == []
    finally:
        child.end()
        await backend.close()
    assert not os.path.exists(sockets)


async def test_a_long_path_wakes_by_way_of_the_temporary_directory(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    one = SqliteBackend(deep / "jobs.db")
    two = one.sibling()
    await one.open()
    await two.open()
    try:
        assert one.hints is not None
        async with one.hints.listen(["queue:q"]) as hints, asyncio.timeout(PATIENCE):
            await two.insert([row(1)])
            assert await anext(hints) == Hint("queue:q")
        assert sorted(os.listdir(deep)) == ["jobs.db", "jobs.db-latch", "jobs.db-shm", "jobs.db-wal"]
    finally:
        await one.close()
        await two.close()


async def test_a_listener_that_does_not_listen_delays_nobody(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "jobs.db", durability="normal")
    await backend.open()
    try:
        assert backend.hints is not None
        async with backend.hints.listen([f"inbox:{n}" for n in range(1_000)]) as hints, asyncio.timeout(PATIENCE):
            loop = asyncio.get_running_loop()
            listener = next(iter(backend.hints._own))
            assert listener._socket is not None
            loop.remove_reader(listener._socket)
            rows = [row(n, reply_to=f"{n % 1_000}") for n in range(2_000)]
            await backend.insert(rows)
            jobs = (await backend.claim(Claim("w", ("q",), 2_000, LEASE))).jobs
            for at in range(0, len(jobs), 200):
                ended = [Settlement(j.id, j.epoch, "w", JobState.COMPLETED) for j in jobs[at : at + 200]]
                await backend.finish(ended)
            loop.add_reader(listener._socket, listener._hear)
            assert (await anext(hints)).topic.startswith("inbox:")
    finally:
        await backend.close()


# -- dying


async def _write_for_ever(path: str, pipe: Connection, first: int) -> None:
    backend = SqliteBackend(path)
    await backend.open()
    for batch in range(first, first + 100_000):
        await backend.insert([row(batch * BATCH + n, queue=f"q{batch % 2}") for n in range(BATCH)])
        jobs = (await backend.claim(Claim("w", ("q0",), 5, HOUR))).jobs
        await backend.finish([Settlement(j.id, j.epoch, "w", JobState.COMPLETED, result=b"r") for j in jobs])
        pipe.send(batch)


def test_a_process_killed_while_it_writes_loses_nothing_and_leaves_nothing_by_halves(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    acknowledged: set[int] = set()
    for first in (0, 1_000_000):
        child = Child(_write_for_ever, path, first)
        while len(acknowledged) < (20 if first == 0 else 40):
            acknowledged.add(child.hear())
        child.process.kill()
        child.process.join()
        while child.pipe.poll():
            try:
                acknowledged.add(child.pipe.recv())
            except EOFError:
                break
        child.end()
        assert integrity(path) == "ok"
    with closing(apsw.Connection(str(path))) as connection:
        ids = [int.from_bytes(found[2:8], "big") for [found] in connection.execute("SELECT id FROM jobs")]
        places = "SELECT seq FROM ready UNION ALL SELECT seq FROM running UNION ALL SELECT seq FROM ended"
        assert sorted(connection.execute(places)) == sorted(connection.execute("SELECT seq FROM jobs"))
        counts = "SELECT sum(available), sum(running), sum(completed) FROM queues"
        tables = "SELECT (SELECT count(*) FROM ready), (SELECT count(*) FROM running), (SELECT count(*) FROM ended)"
        assert connection.execute(counts).fetchall() == connection.execute(tables).fetchall()
    batches = {number // BATCH for number in ids}
    assert len(ids) == len(batches) * BATCH
    assert acknowledged <= batches


def _slot_job(known: Schedule) -> int:
    """The number of the job of a schedule's next slot, whoever plans it."""
    return known.uid[-1] * 1_000_000 + ((known.slot or 0) - T0)


async def _plan_for_ever(path: str, pipe: Connection) -> None:
    """All schedules must always be looked at."""
    backend = SqliteBackend(path)
    await backend.open()
    while True:
        plans = [
            replace(moved(known, fires(known.slot or 0, _slot_job(known))), slot=(known.slot or 0) + 1, look_at=T0)
            for known in (await backend.ticks.due(Look(), T0)).schedules
        ]
        answers = await backend.ticks.plan(plans, T0)
        pipe.send([(plan.name, plan.ticks[0].slot) for plan, answer in zip(plans, answers, strict=True) if answer])


async def test_planners_that_contend_and_are_killed_leave_one_job_for_each_slot(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    backend = SqliteBackend(path)
    await backend.open()
    await backend.ticks.save([Save(schedule(n), 0) for n in range(5)], T0)
    await backend.close()
    acknowledged: list[tuple[str, int]] = []
    children = [Child(_plan_for_ever, path) for _ in range(3)]
    try:
        for child in children:
            for _ in range(15):
                acknowledged += child.hear()
        for child in children:
            child.process.kill()
            child.process.join()
            while child.pipe.poll():
                try:
                    acknowledged += child.pipe.recv()
                except EOFError:
                    break
    finally:
        for child in children:
            child.end()
    assert integrity(path) == "ok"
    assert len(acknowledged) == len(set(acknowledged))
    with closing(apsw.Connection(str(path))) as connection:
        stored = set(connection.execute("SELECT s.name, t.slot FROM ticks AS t JOIN schedules AS s USING (uid)"))
        assert set(acknowledged) <= stored
        assert sorted(connection.execute("SELECT job FROM ticks")) == sorted(connection.execute("SELECT id FROM jobs"))
        planned = "SELECT name, runs, version - 1, slot - ?1, last_slot + 1 - ?1 FROM schedules ORDER BY name"
        counts = {name: sum(known == name for known, _ in stored) for name, _ in stored}
        assert connection.execute(planned, (T0,)).fetchall() == [
            (name, count, count, count, count) for name, count in sorted(counts.items())
        ]
        assert connection.execute("SELECT count FROM places WHERE state = 7").get == len(stored)
        assert connection.execute("SELECT available FROM queues").get == len(stored)


# -- contending


async def _hammer(path: str, pipe: Connection, number: int, rounds: int) -> None:
    holder = f"w{number}"
    backend = SqliteBackend(path)
    await backend.open()
    pipe.send("ready")
    pipe.recv()
    done = 0
    settled: list[Settlement] = []
    for turn in range(rounds):
        base = (number * rounds + turn) * 4
        answers = await backend.insert([row(base + n) for n in range(4)])
        assert [a.status for a in answers] == [InsertStatus.NEW] * 4
        states, claimed = await backend.finish_and_claim(settled, Claim(holder, ("q",), 4, HOUR))
        assert None not in states
        done += len(states)
        settled = [Settlement(j.id, j.epoch, holder, JobState.COMPLETED) for j in claimed.jobs]
        await asyncio.gather(backend.renew(Beat(holder, holder, ("q",), HOUR)), backend.reap(Reap()), backend.stats())
    states = await backend.finish(settled)
    assert None not in states
    await backend.close()
    pipe.send(done + len(states))


def test_contending_processes_meet_no_error(tmp_path: Path) -> None:
    children = [Child(_hammer, tmp_path / "jobs.db", number, 25) for number in range(6)]
    try:
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.pipe.send("go")
        done = sum(child.hear() for child in children)
    finally:
        for child in children:
            child.end()
    with closing(apsw.Connection(str(tmp_path / "jobs.db"))) as connection:
        assert connection.execute("SELECT available, running, completed FROM queues").fetchall() == [
            (600 - done, 0, done)
        ]
    assert integrity(tmp_path / "jobs.db") == "ok"


# -- forking


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_child_may_not_use_the_store_and_the_parent_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    loop = asyncio.new_event_loop()
    backend = SqliteBackend(path)
    loop.run_until_complete(backend.open())

    def refused(call: Callable[[], Any]) -> bool:
        try:
            asyncio.new_event_loop().run_until_complete(call())
        except ConfigError as error:
            return "fork" in str(error)
        return False

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        calls = (lambda: backend.insert([row(9)]), lambda: backend.fetch([job_id(1)]), backend.sibling().open)
        good = all(refused(call) for call in calls)
        asyncio.new_event_loop().run_until_complete(backend.close())
        os._exit(0 if good else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    loop.run_until_complete(backend.insert([row(1)]))
    loop.run_until_complete(backend.close())
    loop.close()
    assert integrity(path) == "ok"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_turn_dies_with_its_process_though_a_forked_child_lives_on(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    child = Child(_fork_and_hold_the_turn, path)
    grandchild = child.hear()
    try:
        child.process.kill()
        child.process.join()

        async def write() -> None:
            backend = SqliteBackend(path)
            await backend.open()
            async with asyncio.timeout(PATIENCE):
                await backend.insert([row(1)])
            await backend.close()

        asyncio.run(write())
    finally:
        os.kill(grandchild, signal.SIGKILL)
        child.end()


async def _fork_and_hold_the_turn(path: str, pipe: Connection) -> None:
    backend = SqliteBackend(path)
    await backend.open()
    assert backend._writer is not None
    backend._writer._latch.acquire()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        signal.pause()
    pipe.send(pid)
    signal.pause()


# -- another SQLite library in this process


async def test_the_standard_sqlite3_may_not_open_a_store_that_is_open_here(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    backend = SqliteBackend(path)
    sibling = backend.sibling()
    await backend.open()
    await sibling.open()
    link = tmp_path / "link.db"
    link.symlink_to(path)
    try:
        for name in (path, str(path), os.fsencode(path), f"file:{path}?mode=ro", link):
            with pytest.raises(ConfigError, match="would drop its locks"):
                sqlite3.connect(name, uri=str(name).startswith("file:"))
        await sibling.close()
        with pytest.raises(ConfigError, match="would drop its locks"):
            sqlite3.connect(path)
        for harmless in (tmp_path / "app.db", ":memory:"):
            sqlite3.connect(harmless).close()
        await backend.insert([row(1)])
    finally:
        await backend.close()
        await sibling.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM jobs").fetchall() == [(1,)]
