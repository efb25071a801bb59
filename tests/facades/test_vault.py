"""The vault: every end is archived once, before its record goes; and what is archived can be asked and run again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from headrace import App, Event, never
from headrace.core.clock import ManualClock
from headrace.errors import ConfigError, InvalidJob, Unavailable
from headrace.keeping.retention import Retention
from headrace.payloads.object_url import parse
from headrace.payloads.objects import Objects
from headrace.seam.archive import HOUR
from headrace.seam.instants import to_datetime
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Row, Settlement, Stamp
from headrace.seam.references import is_reference
from headrace.testing.wrapped import Carry, Wrapped
from headrace.types import JobState, NewJob, Sections
from headrace.vault import unarchived
from headrace.vault.archiver import Archiver
from headrace.vault.catalog import Catalog
from headrace.vault.row_catalog import RowCatalog
from tests import objects
from tests.facades.harness import Store, alerts_of

T = TypeVar("T")
_ENDS = (JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED)
_LEASE = 10**15


class Place:
    """An app with a vault in a directory, and jobs that end when they are told to."""

    def __init__(self, app: App, clock: ManualClock, folder: Path) -> None:
        self.app = app
        self.clock = clock
        self.folder = folder
        self.backend: Backend
        self.vault = True
        """Whether retention knows that there is a vault."""
        self._made = 0

    async def end(self, count: int, state: JobState = JobState.COMPLETED, **row: Any) -> None:
        """Jobs that end now."""
        first, self._made = self._made, self._made + count
        given: dict[str, Any] = {"queue": "q", "task": "t", "cells": {"parameters": b"p", "blob": b"b" * 100}} | row
        rows = [Row(id=(n + 1).to_bytes(16), **given) for n in range(first, first + count)]
        await self.backend.insert(rows, self.clock.now())
        jobs = (await self.backend.claim(Claim("h", (given["queue"],), count, _LEASE), self.clock.now())).jobs
        ends = [Settlement(job.id, job.epoch, "h", state, error=b"e", result=b"r", result_ttl=0) for job in jobs]
        assert await self.backend.finish(ends, self.clock.now()) == [state] * count

    async def rows(self) -> list[tuple[Any, ...]]:
        """All that is archived, without what is in the store alone."""
        found = []
        for file in await Catalog(self.objects()).files():
            table = await Catalog(self.objects()).load(file)
            found += list(zip(*(table.column(name).to_pylist() for name in ("id", "epoch", "state")), strict=True))
        return sorted(found)

    def objects(self) -> Objects:
        return Objects(parse(f"file://{self.folder}"))

    async def sweep(self) -> int:
        """What a worker's retention does."""
        client = self.app.client
        return await Retention(
            self.backend, self.clock, Random(1), client.observers, client.settings.retention, vault=self.vault
        ).sweep()  # fmt: skip


@pytest.fixture
async def place(store: Store, tmp_path: Path) -> Place:
    return await make(store, tmp_path)


async def make(store: Store, folder: Path, **retention: Any) -> Place:
    clock = ManualClock()
    keep = {state.value: {"age": "1h", "count": None, "bytes": None} for state in _ENDS}
    vault = {"url": f"file://{folder}/vault", "page": 7}
    app = store.app(clock=clock, retention=keep | retention, vault=vault, patience="1s")
    found = Place(app, clock, folder / "vault")
    found.backend = await app.client.backend()
    return found


async def test_every_end_is_archived_once_and_only_then_goes(place: Place) -> None:
    vault = place.app.vault
    assert await vault.archive() == 0
    for state in _ENDS:
        await place.end(20, state)
        place.clock.advance("25m")
    assert await vault.archive() == 60
    assert await vault.archive() == 0
    assert len(await place.rows()) == len(set(await place.rows())) == 60
    await place.end(5)
    place.clock.advance("2h")
    assert await place.sweep() == 60
    assert await vault.archive() == 5
    found = await vault.verify()
    assert (found.jobs, found.problems) == (65, [])
    assert found.files == 3 * 3 + 1


class Watched(Wrapped):
    """A store that notes what of ended jobs is wanted."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.wanted: list[int] = []

    async def _call(self, name: str, args: tuple[Any, ...], at: Stamp, carry: Carry[T]) -> T:
        if name == "archive.ended" and args[3]:
            self.wanted.append(args[2])
        return await carry(at)


async def test_what_is_not_final_is_not_read(place: Place) -> None:
    backend, client = Watched(place.backend), place.app.client
    archiver = Archiver(backend, place.objects(), place.clock, Random(1), client.observers, client.settings.vault)
    await archiver.archive()
    empty = len(backend.wanted)
    await place.end(5)
    assert await archiver.archive() == 0
    assert len(backend.wanted) - empty == 2, "of the two states of which there is nothing"
    place.clock.advance("5m")
    assert await archiver.archive() == 5


async def test_hard_bounds_obey_the_mark_too(store: Store, tmp_path: Path) -> None:
    place = await make(store, tmp_path, failed={"age": None, "count": 0, "bytes": 0})
    await place.app.vault.archive()
    await place.end(10, JobState.FAILED)
    place.clock.advance("3m")
    assert await place.sweep() == 0
    assert await place.app.vault.archive() == 10
    await place.end(1, JobState.FAILED)
    place.clock.advance("3m")
    assert await place.sweep() == 10
    await place.app.vault.leave()
    assert await place.sweep() == 0, "its setting is still there"
    place.vault = False
    assert await place.sweep() == 1


async def test_nothing_goes_before_the_first_look_of_the_archiver(store: Store, tmp_path: Path) -> None:
    place = await make(store, tmp_path, completed={"age": "1d", "count": 10}, failed={"age": "1h", "count": 10})

    @place.app.task(name="count")
    async def count(n: int) -> None: ...

    @place.app.task(name="fail", retry=never())
    async def fail(n: int) -> None:
        raise ValueError("as always")

    await place.app.enqueue_many([task.job(n) for task in (count, fail) for n in range(100)])
    await place.app.drain()
    place.clock.advance("5m")
    assert await place.sweep() == 0
    assert (await place.app.janitor.preview()).deleted == 0
    assert await place.app.vault.archive() == 200
    assert await place.sweep() > 0


async def test_workers_that_have_begun_without_a_vault_learn_of_it_before_they_make_room(
    store: Store, tmp_path: Path
) -> None:
    place = await make(store, tmp_path, failed={"age": "1h", "count": 10})
    old = store.app(clock=place.clock, retention={"failed": {"count": 10}, "every": "1h"})

    @old.task(name="fail", retry=never())
    async def fail(n: int) -> None:
        raise ValueError("as always")

    work = asyncio.create_task(old.work())
    await all_run(old, [fail.job(n) for n in range(100)])
    before = sum(one.jobs for one in await old.janitor.removed())
    assert before >= 85
    await place.app.vault.archive()
    await all_run(old, [fail.job(n) for n in range(100)])
    assert sum(one.jobs for one in await old.janitor.removed()) == before
    old.stop()
    await work


async def all_run(app: App, jobs: list[Any]) -> None:
    """Enqueue jobs, and return when a worker has run them all."""
    await app.enqueue_many(jobs)
    async with asyncio.timeout(60):
        while any(one.available or one.running for one in (await app.client.stats()).queues):
            await asyncio.sleep(0.02)


async def test_sql_sees_what_is_archived_and_what_is_not(place: Place) -> None:
    await place.end(9, JobState.FAILED, task="charge", tenant="acme")
    place.clock.advance("5m")
    await place.app.vault.archive()
    await place.end(4, task="send")
    ask = "SELECT task, tenant, state, count(*) AS jobs FROM jobs GROUP BY ALL ORDER BY task"
    expected = [
        {"task": "charge", "tenant": "acme", "state": "failed", "jobs": 9},
        {"task": "send", "tenant": "", "state": "completed", "jobs": 4},
    ]
    assert await place.app.vault.query(ask) == expected
    place.clock.advance("5m")
    await place.app.vault.archive()
    assert await place.app.vault.query(ask) == expected
    [row] = await place.app.vault.query("SELECT blob, epoch FROM jobs WHERE task = ? LIMIT 1", ["send"])
    assert row["blob"] == b"b" * 100
    with pytest.raises(InvalidJob, match=r"query: .*nothing"):
        await place.app.vault.query("SELECT nothing FROM jobs")


async def test_small_files_are_put_together_and_no_job_is_lost_or_doubled(place: Place) -> None:
    for _ in range(3):
        await place.end(10)
        place.clock.advance("10m")
    await place.app.vault.archive()
    before = await place.rows()
    assert len(await place.app.vault.files()) > 3
    place.clock.advance("5h")
    done = await place.app.vault.compact()
    assert done.removed > done.made > 0
    assert await place.rows() == before
    assert (await place.app.vault.verify()).problems == []
    again = await place.app.vault.compact()
    assert again.made == again.removed == 0


async def test_a_job_runs_again_straight_from_the_vault(store: Store, tmp_path: Path) -> None:
    place = await make(store, tmp_path)
    ran: list[int] = []

    @place.app.task(name="count", queue="numbers")
    async def count(n: int) -> None:
        ran.append(n)

    handle = await count.enqueue(7)
    await place.app.drain()
    place.clock.advance("5m")
    assert await place.app.vault.archive() == 1
    place.clock.advance("5h")
    assert await place.sweep() == 1
    done = await place.app.vault.replay("id = ?", [str(handle.id)])
    assert done.enqueued == [handle.id]
    await place.app.drain()
    assert ran == [7, 7]
    done = await place.app.vault.replay("task = 'count'")
    assert done.requeued == [handle.id], "it is in the store again"
    await place.app.drain()
    assert ran == [7, 7, 7]
    place.clock.advance("5m")
    await place.app.vault.archive()
    assert len([row for row in await place.rows() if row[0] == str(handle.id)]) == 2, "once for each end that stayed"


async def test_a_query_counts_every_end_once_whenever_an_archiver_dies(place: Place) -> None:
    client, count = place.app.client, "SELECT count(*) AS rows, count(DISTINCT id) AS jobs FROM jobs"
    await place.end(20)
    place.clock.advance("5m")
    await place.app.vault.archive()
    await place.end(5)
    place.clock.advance("5m")
    objects = MortalObjects(place.folder, after=True)
    with pytest.raises(Dies):
        await Archiver(
            place.backend, objects, place.clock, Random(1), client.observers, client.settings.vault
        ).archive()  # fmt: skip
    assert await place.app.vault.query(count) == [{"rows": 25, "jobs": 25}]
    assert len(await place.rows()) == 25, "a page is written that no mark knows of"
    assert (await place.app.vault.confined(count)).rows == [[25, 25]]


async def test_a_query_misses_nothing_that_is_archived_meanwhile(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await place.end(10)
    place.clock.advance("5m")
    files = Catalog.files

    async def late(self: Catalog, since: int | None = None, until: int | None = None) -> Any:
        found = await files(self, since, until)
        await place.app.vault.archive()
        place.clock.advance("5h")
        await place.sweep()
        return found

    monkeypatch.setattr(Catalog, "files", late)
    assert await place.app.vault.query("SELECT count(*) AS jobs FROM jobs") == [{"jobs": 10}]


async def test_a_query_over_too_much_that_is_not_archived_is_refused_unless_its_hours_are_bounded(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unarchived, "_MOST", 10)
    for _ in range(3):
        await place.end(6)
        place.clock.advance("1h")
    with pytest.raises(InvalidJob, match=r"at most 10 jobs that are not archived yet.*since, until"):
        await place.app.vault.query("SELECT * FROM jobs")
    since = to_datetime(place.clock.now() - 2 * HOUR)
    [row] = await place.app.vault.query("SELECT count(*) AS jobs FROM jobs", since=since, until=since)
    assert row["jobs"] == 6


async def test_a_vault_that_was_left_goes_on_where_it_ended(store: Store, tmp_path: Path) -> None:
    place = await make(store, tmp_path)
    await place.end(10)
    place.clock.advance("2m")
    await place.app.vault.archive()
    await place.app.vault.leave()
    await place.app.vault.leave()
    await place.end(13)
    place.clock.advance("2m")
    elsewhere = store.app(clock=place.clock, vault={"url": f"file://{tmp_path}/elsewhere", "page": 7})
    assert await elsewhere.vault.archive() == 23, "another one begins with what there is"
    await elsewhere.vault.leave()
    place.vault = False
    place.clock.advance("30m")
    assert await place.sweep() == 0
    assert await place.app.vault.archive() == 13
    found = await place.app.vault.verify()
    assert (found.jobs, found.problems) == (23, [])
    assert len(await place.rows()) == len(set(await place.rows())) == 23
    place.clock.advance("3h")
    await place.end(1)
    assert await place.sweep() == 23


class Dies(BaseException):
    """The end of a process."""


class Mortal(Wrapped):
    """A store whose client dies before or after its nth call."""

    def __init__(self, inner: Backend, calls: int, *, after: bool) -> None:
        super().__init__(inner)
        self.left = calls
        self._after = after

    async def _call(self, name: str, args: tuple[Any, ...], at: Stamp, carry: Carry[T]) -> T:
        self.left -= 1
        if self.left == 0 and not self._after:
            raise Dies
        answer = await carry(at)
        if self.left == 0:
            raise Dies
        return answer


class MortalObjects(Objects):
    """An object store whose client dies before or after it has written."""

    def __init__(self, folder: Path, *, after: bool) -> None:
        super().__init__(parse(f"file://{folder}"))
        self._after = after

    async def create(self, key: str, body: bytes) -> bool:
        if self._after:
            await super().create(key, body)
        raise Dies


async def test_an_archiver_may_die_at_any_step(place: Place) -> None:
    client = place.app.client
    for state in _ENDS:
        await place.end(17, state)
    place.clock.advance("5m")

    def archiver(backend: Backend, objects: Objects) -> Archiver:
        return Archiver(backend, objects, place.clock, Random(1), client.observers, client.settings.vault)

    deaths = 0
    for after in (False, True):
        for calls in range(1, 8):
            with pytest.raises(Dies):
                await archiver(Mortal(place.backend, calls, after=after), place.objects()).archive()
            deaths += 1
        with pytest.raises(Dies):
            await archiver(place.backend, MortalObjects(place.folder, after=after)).archive()
    await place.app.vault.archive()
    rows = await place.rows()
    assert len(rows) == len(set(rows)) == 51
    assert deaths == 14
    found = await place.app.vault.verify()
    assert (found.jobs, found.problems) == (51, [])


async def test_two_archivers_at_once_archive_everything_once(place: Place) -> None:
    await place.end(40)
    place.clock.advance("5m")
    await asyncio.gather(*(place.app.vault.archive() for _ in range(4)))
    rows = await place.rows()
    assert len(rows) == len(set(rows)) == 40
    assert (await place.app.vault.verify()).problems == []


async def test_a_section_whose_object_is_gone_is_archived_as_its_reference_and_logged(
    memory: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    objects_of = {"url": f"file://{tmp_path}/o", "vm_state": {"over": 0}}
    app = memory.app(clock=clock, vault={"url": f"file://{tmp_path}/vault"}, objects=objects_of)
    place = Place(app, clock, tmp_path / "vault")
    place.backend = await app.client.backend()
    await app.client.insert([NewJob(task="t", sections=Sections(vm_state=b"1" * 1_000))])
    for file in (tmp_path / "o" / "segments").rglob("*"):
        if file.is_file():
            file.unlink()
    [job] = (await place.backend.claim(Claim("w", ("default",), 1, 10**9), clock.stamp())).jobs
    await place.backend.finish([Settlement(job.id, job.epoch, "w", JobState.COMPLETED)], clock.stamp())
    clock.advance("3h")
    assert await app.vault.archive() == 1
    assert "is archived without its vm_state: object segments/" in caplog.text
    [found] = await app.vault.query("SELECT vm_state FROM jobs")
    assert is_reference(found["vm_state"])
    await memory.close()


async def test_a_vault_may_be_a_bucket(memory: Store) -> None:
    """On a real S3 server: archived, asked, put together, checked and run again."""
    url = objects.server().url(f"vault/{uuid4()}")
    clock = ManualClock()
    app = memory.app(clock=clock, vault={"url": url, "page": 7})
    place = Place(app, clock, Path("unused"))
    place.backend = await app.client.backend()
    for state in _ENDS:
        await place.end(10, state, tenant="ada")
        clock.advance("1h")
    assert await app.vault.archive() == 30
    assert {file.state for file in await app.vault.files()} == {"completed", "cancelled", "failed"}
    sql = "SELECT state, count(*) AS jobs FROM jobs WHERE tenant = 'ada' GROUP BY ALL ORDER BY ALL"
    rows = [{"state": state, "jobs": 10} for state in ("cancelled", "completed", "failed")]
    assert await app.vault.query(sql) == rows
    clock.advance("3h")
    assert (await app.vault.compact()).made == 3
    assert await app.vault.query(sql) == rows
    found = await app.vault.verify()
    assert (found.jobs, found.problems) == (30, [])
    again = await app.vault.replay("state = 'failed'", limit=3)
    assert len(again.requeued) == 3
    await memory.close()


async def test_rows_of_your_own(memory: Store, tmp_path: Path) -> None:
    place = await make(memory, tmp_path)
    key = await place.app.vault.append("metrics", [{"video": "a", "views": 5}, {"video": "b", "views": 7}])
    assert key is not None
    assert key.startswith("metrics/date=2027-01-15/hour=08/")
    assert (place.folder / key).stat().st_size > 0
    assert await place.app.vault.append("metrics", []) is None
    for bad in ("a/b", "jobs", "attempts", "..", ""):
        with pytest.raises(InvalidJob):
            await place.app.vault.append(bad, [{"a": 1}])


@pytest.fixture(params=["directory", "bucket"])
def rows_app(request: pytest.FixtureRequest, memory: Store, tmp_path: Path) -> App:
    """An app whose vault has rows of two tables, in many files of two hours."""
    url = f"file://{tmp_path}/vault" if request.param == "directory" else objects.server().url(f"vault/{uuid4()}")
    return memory.app(clock=ManualClock(), vault={"url": url})


async def fill(app: App) -> None:
    early = to_datetime(app.client.clock.now() - 5 * HOUR)
    for hour in range(2):
        for n in range(6):
            rows = [{"id": f"{hour}-{n}-{m}", "views": n} | ({"more": 1.5} if n == 3 else {}) for m in range(10)]
            await app.vault.append('odd *[name] "', rows, at=early + timedelta(hours=hour), name=f"page {n}")
    await app.vault.append("metrics", [{"id": "x", "at": early}])


async def test_rows_of_your_own_are_listed_asked_put_together_and_checked(rows_app: App) -> None:
    vault, odd = rows_app.vault, 'odd *[name] "'
    await fill(rows_app)
    assert await vault.tables() == ["metrics", odd]
    assert len(await vault.files(table=odd)) == 12
    ask = 'SELECT count(*) AS rows, count(DISTINCT id) AS ids, sum(more) AS more FROM "odd *[name] """'
    expected = [{"rows": 120, "ids": 120, "more": 30.0}]
    assert await vault.query(ask) == expected
    assert (await vault.confined(ask)).rows == [[120, 120, 30.0]]
    since = to_datetime(rows_app.client.clock.now() - 4 * HOUR)
    assert (await vault.query(ask, since=since))[0]["rows"] == 60
    done = await vault.compact()
    assert (done.made, done.removed) == (2, 12)
    assert len(await vault.files(table=odd)) == 2
    assert await vault.query(ask) == expected
    await vault.append(
        odd, [{"id": "0-1-0", "views": 1}], at=to_datetime(rows_app.client.clock.now() - 5 * HOUR), name="page 1"
    )
    assert await vault.query(ask) == expected, "somebody slow has written it again"
    await vault.append(odd, [{"id": "new"}], at=since)
    assert (await vault.query(ask))[0]["rows"] == 121
    done = await vault.compact()
    assert (done.made, done.removed) == (1, 3)
    again = await vault.compact()
    assert again.made == again.removed == 0
    assert (await vault.query(ask))[0]["rows"] == 121
    found = await vault.verify()
    assert (found.files, found.problems) == (3, [])
    joined = await vault.query("SELECT count(*) AS n FROM metrics AS m LEFT JOIN jobs AS j ON j.id = m.id")
    assert joined == [{"n": 1}]
    await rows_app.client.close()


class FewSteps(Objects):
    """An object store whose client dies before its nth change; a deletion of several is as many."""

    def __init__(self, folder: Path, steps: int) -> None:
        super().__init__(parse(f"file://{folder}"))
        self._left = steps

    async def create(self, key: str, body: bytes) -> bool:
        self._step()
        return await super().create(key, body)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._step()
            await super().delete([key])

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Dies


async def test_a_compaction_of_jobs_may_die_at_any_step_and_others_ask_meanwhile(place: Place) -> None:
    for _ in range(3):
        await place.end(20)
        await place.end(20, JobState.FAILED)
        place.clock.advance("40m")
    await place.app.vault.archive()
    count = "SELECT count(*) AS rows, count(DISTINCT id) AS jobs FROM jobs"
    files = len(await place.app.vault.files())
    place.clock.advance("5h")
    assert await place.sweep() > 0
    for step in range(60):
        with contextlib.suppress(Dies):
            done = await Catalog(FewSteps(place.folder, 1 + step % 4)).compact(place.clock.now())
            if not done.removed:
                break
        assert await place.app.vault.query(count) == [{"rows": 120, "jobs": 120}], step
        assert (await place.app.vault.verify()).problems == []
    assert step > 5
    assert len(await place.app.vault.files()) < files
    assert len(await place.rows()) == len(set(await place.rows())) == 120


async def test_a_compaction_of_rows_may_die_at_any_step(memory: Store, tmp_path: Path) -> None:
    app = memory.app(clock=ManualClock(), vault={"url": f"file://{tmp_path}/vault"})
    await fill(app)
    ask = 'SELECT count(*) AS rows, count(DISTINCT id) AS ids FROM "odd *[name] """'

    for step in range(1, 15):
        mortal = FewSteps(tmp_path / "vault", 1 + step % 3)
        with contextlib.suppress(Dies):
            await RowCatalog(mortal).compact(app.client.clock.now())
        assert await app.vault.query(ask) == [{"rows": 120, "ids": 120}], step
    await app.vault.compact()
    assert len(await app.vault.files(table='odd *[name] "')) == 2
    assert (await app.vault.verify()).problems == []


async def test_a_vault_that_is_away_keeps_everything_and_says_so(memory: Store, tmp_path: Path) -> None:
    place = await make(memory, tmp_path)
    await place.end(3)
    place.clock.advance("3h")

    class Away(Objects):
        async def create(self, key: str, body: bytes) -> bool:
            raise Unavailable("away")

    told: list[Event] = []
    place.app.observe(told.append)
    client = place.app.client
    objects = Away(parse(f"file://{tmp_path}/vault"))
    archiver = Archiver(place.backend, objects, place.clock, Random(1), client.observers, client.settings.vault)
    for _ in range(3):
        assert await archiver.look() == 0
    assert alerts_of(told) == ["archive_failing"]
    assert await place.sweep() == 0


async def test_without_a_vault_there_is_none(memory: Store) -> None:
    app = memory.app()
    with pytest.raises(ConfigError, match=r"set vault\.url"):
        await app.vault.files()
