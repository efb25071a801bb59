"""Leased jobs in the caller's own loop."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headrace import App, Client, EventKind, JobState, NewJob, Pull, PulledJob, Sections, Settings
from headrace.backends.streams import StreamsBackend
from headrace.errors import CodecError, ConfigError, InvalidJob, LeaseLost, PayloadTooLarge, Rejected, Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Claimed, Delete, Reap, Reschedule, Selector, Settlement, Stamp
from tests.worker.conftest import FAST, STORES, Told, blank
from tests.worker.stores import Plain

SECTIONS = Sections(parameters=b"p", vm_state=b"v", metadata=b"m", blob=b"b")
DETAILS = frozenset({"parameters", "vm_state", "metadata", "blob"})
MakeClient = Callable[..., Client]


@pytest.fixture(params=[*STORES, "streams"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return blank(request.param, tmp_path)


@pytest.fixture
def make_client(store: Backend) -> MakeClient:
    """Clients of the same store, whose pulls leave the upkeep to the tests."""

    def make(backend: Backend | None = None, **worker: Any) -> Client:
        given = {"worker": FAST | {"name": "random"} | worker, "patience": "20s", "payloads": {"max_size": 300_000}}
        client = Client(backend or store.sibling(), Settings.load(given, env={}, toml={}))
        client.guest = True
        return client

    return make


def job(number: int = 0, **options: Any) -> NewJob:
    return NewJob(**{"task": "step", "queue": "hog", "sections": SECTIONS, "id": UUID(int=number + 1)} | options)


async def one(pull: Pull) -> PulledJob:
    [found] = await pull.take(1, wait="60s")
    return found


async def stored(client: Client, number: int = 0) -> tuple[JobState, dict[str, bytes]]:
    record = await client.fetch(UUID(int=number + 1), DETAILS)
    assert record is not None
    cells = {name: client.packer.envelope.unwrap(cell, name)[1] for name, cell in record.cells.items()}
    return record.state, cells


async def reap(client: Client) -> None:
    """Take back every lease, as if it had run out."""
    backend = await client.backend()
    far = await backend.now() + 3_600_000_000
    assert await backend.reap(Reap(max_lost=100), far)
    await backend.alter(Selector(queue="hog"), Reschedule())


class TestTake:
    async def test_a_loop_of_ones_own(self, make_client: MakeClient) -> None:
        async with make_client() as client:
            await client.insert([job(i, priority=-i) for i in range(5)])
            seen = []
            async for jobs in client.pull("hog", batch=2):
                assert len(jobs) <= 2
                for each in jobs:
                    seen.append(each.priority)
                    each.set_state("completed")
                    each.release()
                if len(seen) == 5:
                    break
            assert seen == [-4, -3, -2, -1, 0]
        async with make_client() as client:
            assert {(await stored(client, i))[0] for i in range(5)} == {JobState.COMPLETED}

    async def test_waits_for_what_comes(self, make_client: MakeClient) -> None:
        async with make_client() as client, client.pull("hog") as pull, asyncio.TaskGroup() as group:
            waiting = group.create_task(pull.take())
            assert await pull.take(wait=0) == []
            await client.insert([job()])
            [held] = await waiting
            assert held.id == UUID(int=1)

    async def test_an_empty_batch_on_request(self, make_client: MakeClient) -> None:
        async with make_client() as client, client.pull("hog") as pull:
            for wait in (0, "50ms"):
                assert await pull.take(wait=wait) == []
            await client.insert([job()])
            assert len(await pull.take(wait=0)) == 1

    async def test_callers_share_what_there_is(self, make_client: MakeClient) -> None:
        async with make_client() as client, client.pull("hog") as pull:
            await client.insert([job(i) for i in range(30)])
            found = await asyncio.gather(*(pull.take(10, wait="60s") for _ in range(3)))
            ids = [each.id for jobs in found for each in jobs]
            assert len(ids) == len(set(ids)) == 30
            assert pull.held == 30

    async def test_so_do_callers_that_come_before_it_is_open(self, make_client: MakeClient) -> None:
        async with make_client() as client:
            await client.insert([job(i) for i in range(30)])
        client = make_client()
        async with AsyncExitStack() as after, asyncio.timeout(60):
            after.push_async_callback(client.close)
            pull = client.pull("hog")
            found = await asyncio.gather(*(pull.take(10) for _ in range(3)))
            ids = [each.id for jobs in found for each in jobs]
            assert len(ids) == len(set(ids)) == pull.held == 30
            await pull.close()
            assert {(await stored(client, i))[0] for i in range(30)} == {JobState.AVAILABLE}
            assert "headrace-pull" not in {task.get_name() for task in asyncio.all_tasks()}

    async def test_closed_before_it_is_open(self, make_client: MakeClient) -> None:
        async with make_client() as client:
            await client.insert([job()])
        client = make_client()
        async with AsyncExitStack() as after, asyncio.timeout(60):
            after.push_async_callback(client.close)
            pull = client.pull("hog")
            taking = asyncio.ensure_future(pull.take())
            await asyncio.sleep(0)
            await pull.close()
            assert await taking == []
            with pytest.raises(ConfigError, match="closed"):
                await pull.take()
            assert (await client.stats(["hog"])).workers == []

    async def test_two_pulls_never_have_the_same_job(self, make_client: MakeClient) -> None:
        async with make_client() as first, make_client() as second:
            await first.insert([job(i) for i in range(40)])
            async with first.pull("hog") as one_pull, second.pull("hog") as other:
                found = await asyncio.gather(*(pull.take(7, wait=0) for pull in (one_pull, other) * 4))
                ids = [each.id for jobs in found for each in jobs]
                assert len(ids) == len(set(ids)) == 40

    async def test_a_caller_that_gives_up_keeps_no_job(self, make_client: MakeClient) -> None:
        """Whether it goes before its claim is sent, while that is under way, or when it is answered."""
        async with make_client() as client, client.pull("hog") as pull:
            for number in range(40):
                await client.insert([job(number)])
                waiting = asyncio.ensure_future(pull.take())
                for _ in range(number):
                    await asyncio.sleep(0)
                waiting.cancel()
                jobs = [] if (await asyncio.wait([waiting]), waiting.cancelled())[1] else waiting.result()
                for each in jobs or [await one(pull)]:
                    each.set_state("completed")
                    assert await each.release() is JobState.COMPLETED
            assert pull.held == 0
            assert {(await stored(client, i))[0] for i in range(40)} == {JobState.COMPLETED}

    async def test_jobs_without_their_sections_come_together_however_large_they_are(
        self, make_client: MakeClient
    ) -> None:
        async with make_client() as client, client.pull("hog", batch=20, want=set()) as pull:
            await client.insert([job(number, sections=Sections(blob=bytes(290_000))) for number in range(20)])
            jobs = await pull.take(20, wait="60s")
            assert len(jobs) == 20
            for held in jobs:
                held.set_state("completed")
                held.release()

    async def test_only_the_sections_that_are_wanted(self, make_client: MakeClient) -> None:
        async with make_client() as client, client.pull("hog", want={"parameters", "blob"}) as pull:
            await client.insert([job(sections=Sections(parameters=b"p", vm_state=b"v"))])
            held = await one(pull)
            assert (held.section("parameters"), held.section("blob")) == (b"p", None)
            with pytest.raises(ValueError, match=r"not among those wanted"):
                held.section("vm_state")
            assert await held.load("vm_state") == b"v"
            assert await held.load("metadata") is None
            held.set_state("paused")
            assert await held.release() is JobState.PAUSED
            assert (await stored(client))[1] == {"parameters": b"p", "vm_state": b"v"}
            with pytest.raises(LeaseLost):
                await held.load("vm_state")

    @pytest.mark.parametrize("times", [1, 10**9])
    async def test_a_store_that_is_about_to_have_jobs_is_asked_again(
        self, store: Backend, make_client: MakeClient, times: int
    ) -> None:
        """But not for ever."""

        class Busy(Plain):
            left = times

            async def claim(self, req: Claim, at: Stamp = None) -> Claimed:
                if self.left:
                    self.left -= 1
                    return Claimed([], next_in=0)
                return await super().claim(req, at)

        async with make_client(Busy(store)) as client, client.pull("hog") as pull, asyncio.timeout(60):
            await client.insert([job()])
            assert len(await pull.take(wait=0)) == (times == 1)

    async def test_says_when_the_store_does_not_answer(self, store: Backend, make_client: MakeClient) -> None:
        flaky = Plain(store)
        client = make_client(flaky)
        async with client:
            pull = Pull(client.pull("hog")._connect, guest=True, patience=0.1)
            async with pull:
                assert await pull.take(wait=0) == []
                flaky.away = True
                with pytest.raises(Unavailable):
                    await pull.take(wait=0)
                flaky.away = False
                await client.insert([job()])
                assert await one(pull)

    @pytest.mark.parametrize(("option", "value"), [("batch", 0), ("batch", "many"), ("want", {"vmstate"})])
    def test_options_are_checked(self, make_client: MakeClient, option: str, value: Any) -> None:
        with pytest.raises(ConfigError, match=option):
            make_client().pull("hog", **{option: value})


class TestDraft:
    async def test_is_stored_at_once_and_what_was_not_touched_stays(self, make_client: MakeClient) -> None:
        async with make_client() as client, client.pull("hog") as pull:
            await client.insert([job(priority=7)])
            held = await one(pull)
            later = datetime.now(UTC) + timedelta(days=1)
            held.set_vm_state(b"v2")
            held.set_blob(None)
            held.set_metadata(b"")
            held.set_queue("overflow")
            held.set_priority(0)
            held.set_scheduled(later)
            held.set_state("available")
            assert (await stored(client))[1] == {"parameters": b"p", "vm_state": b"v", "metadata": b"m", "blob": b"b"}
            assert await held.release() is JobState.AVAILABLE
            info = await client.get(held.id)
            assert (info.queue, info.priority, info.attempt) == ("overflow", 0, 0)
            assert info.run_at is not None
            assert abs(info.run_at - later) < timedelta(milliseconds=1)
            assert await stored(client) == (
                JobState.AVAILABLE,
                {"parameters": b"p", "vm_state": b"v2", "metadata": b""},
            )

    async def test_a_job_that_runs_again_keeps_its_place(self, make_client: MakeClient) -> None:
        async with make_client() as client, client.pull("hog") as pull:
            await client.insert([job(i) for i in range(3)])
            first = await one(pull)
            before = first.run_at
            first.set_state("available")
            await first.release()
            again = [await one(pull) for _ in range(3)]
            if not isinstance(client._backend, StreamsBackend):  # its order is that of arrival in the window
                assert again[0].id == first.id
            assert {each.id: each.run_at for each in again}[first.id] == before

    @pytest.mark.parametrize("state", [None, "running"])
    async def test_a_release_without_an_end_keeps_what_is_staged(self, make_client: MakeClient, state: str) -> None:
        async with make_client() as client, client.pull("hog") as pull:
            await client.insert([job()])
            held = await one(pull)
            held.set_vm_state(b"staged")
            if state:
                held.set_state(state)
            with pytest.raises(InvalidJob, match="state: expected"):
                held.release()
            assert held.held
            held.set_state("completed")
            assert await held.release() is JobState.COMPLETED
            assert (await stored(client))[1]["vm_state"] == b"staged"

    async def test_bad_values_are_refused_and_change_nothing(self, make_client: MakeClient) -> None:
        async with make_client() as client, client.pull("hog") as pull:
            await client.insert([job()])
            held: Any = await one(pull)
            for change, value in [
                (held.set_state, "done"), (held.set_queue, ""), (held.set_queue, None), (held.set_priority, 40_000),
                (held.set_priority, None), (held.set_scheduled, datetime(2030, 1, 1)), (held.set_vm_state, "text"),
            ]:  # fmt: skip
                with pytest.raises((InvalidJob, ConfigError)):
                    change(value)
            held.set_blob(b"x" * 300_001)
            held.set_state("completed")
            with pytest.raises(PayloadTooLarge):
                await held.release()
            held.set_blob(b"fits")
            held.set_scheduled(datetime.now(UTC))
            with pytest.raises(InvalidJob, match="does not run again"):
                held.release()
            held.set_state("paused")
            assert await held.release() is JobState.PAUSED
            assert (await stored(client))[1]["blob"] == b"fits"

    async def test_failures_count_and_are_remembered(self, make_client: MakeClient) -> None:
        async with make_client() as client, client.pull("hog") as pull:
            await client.insert([job()])
            held = await one(pull)
            held.set_state("available", error="503")
            await held.release()
            held = await one(pull)
            assert held.attempt == 1
            held.set_state("failed", error="gave up")
            assert await held.release() is JobState.FAILED
            info = await client.get(held.id)
            assert (info.attempt, [each.message for each in info.failures]) == (2, ["503", "gave up"])

    async def test_large_sections_are_packed_beside_the_loop(self, make_client: MakeClient) -> None:
        body = bytes(range(256)) * 1_000
        async with make_client() as client:
            async with client.pull("hog") as pull:
                await client.insert([job()])
                held = await one(pull)
                held.set_vm_state(body)
                held.set_state("completed")
                held.release()
            assert (await stored(client))[1]["vm_state"] == body


class TestRelease:
    async def test_too_late_is_refused(self, make_client: MakeClient) -> None:
        told = Told()
        async with make_client() as client, make_client() as other:
            client.observers.add(told)
            async with client.pull("hog") as pull, other.pull("hog") as other_pull:
                await client.insert([job()])
                late = await one(pull)
                await reap(client)
                current = await one(other_pull)
                late.set_vm_state(b"late")
                late.set_state("completed")
                with pytest.raises(LeaseLost, match="no longer held"):
                    await late.release()
                await told.wait_for(EventKind.LEASE_LOST)
                assert (await stored(client))[1]["vm_state"] == b"v"
                with pytest.raises(LeaseLost):
                    late.set_blob(b"x")
                current.set_state("completed")
                assert await current.release() is JobState.COMPLETED

    async def test_a_job_that_is_gone_is_never_created_again(self, make_client: MakeClient) -> None:
        async with make_client() as client, client.pull("hog") as pull:
            await client.insert([job()])
            held = await one(pull)
            held.set_state("completed")
            await held.release()
            with pytest.raises(LeaseLost, match="it was released"):
                held.release()
            await client.insert([job(1)])
            held = await one(pull)
            await reap(client)
            await client.alter(Selector(ids=[held.id.bytes]), Delete())
            held.set_state("available")
            with pytest.raises(LeaseLost):
                await held.release()
            assert await client.fetch(held.id) is None

    async def test_under_way_it_answers_the_same(self, make_client: MakeClient) -> None:
        async with make_client() as client, client.pull("hog") as pull:
            await client.insert([job()])
            held = await one(pull)
            held.set_state("completed")
            flush = held.release()
            assert held.release() is flush
            with pytest.raises(LeaseLost, match="being released"):
                held.set_state("failed")
            given_up = asyncio.ensure_future(flush)
            await asyncio.sleep(0)
            given_up.cancel()
            assert await flush is JobState.COMPLETED

    async def test_counts_once_the_store_has_it_and_is_repeated_until_then(
        self, store: Backend, make_client: MakeClient
    ) -> None:
        class Forgetful(Plain):
            """Carries out the first finish, and loses the answer."""

            lose = 1

            async def finish(self, batch: Sequence[Settlement], at: Stamp = None) -> list[JobState | None]:
                answer = await super().finish(batch, at)
                if self.lose:
                    self.lose -= 1
                    raise Unavailable("lost")
                return answer

        for number, state in enumerate(("completed", "available", "paused", "failed")):
            flaky = Forgetful(store.sibling())
            async with make_client(flaky) as client, client.pull("hog") as pull:
                await client.insert([job(number)])
                held = await one(pull)
                flaky.away = True
                held.set_state(state)
                held.set_queue("elsewhere")
                flush = held.release()
                async with asyncio.timeout(60):
                    while flaky.calls.count("finish") < 2:
                        await asyncio.sleep(0.01)
                assert not flush.done
                flaky.away = False
                assert await flush == state
                assert (await client.get(held.id)).state == state

    @pytest.mark.parametrize("state", ["completed", "available"])
    async def test_one_that_waited_for_the_store_for_too_long_is_refused(
        self, store: Backend, make_client: MakeClient, state: str
    ) -> None:
        flaky = Plain(store)
        async with make_client(flaky) as client, client.pull("hog") as pull, make_client() as other:
            await client.insert([job()])
            held = await one(pull)
            flaky.away = True
            held.set_state(state)
            flush = held.release()
            await reap(other)
            flaky.away = False
            with pytest.raises(LeaseLost):
                await flush
            assert (await client.get(held.id)).lost == 1

    async def test_one_that_is_rejected_fails_no_other_and_can_be_mended(
        self, store: Backend, make_client: MakeClient
    ) -> None:
        class Picky(Plain):
            async def finish(self, batch: Sequence[Settlement], at: Stamp = None) -> list[JobState | None]:
                if any(one.queue == "poison" for one in batch):
                    raise Rejected("no such queue")
                return await self.inner.finish(batch, at)

        async with make_client(Picky(store)) as client, client.pull("hog") as pull:
            await client.insert([job(i) for i in range(5)])
            jobs = await pull.take(wait="60s")
            flushes = []
            for number, held in enumerate(jobs):
                held.set_state("paused")
                held.set_vm_state(b"staged")
                held.set_queue("poison" if number == 2 else "fine")
                flushes.append(held.release())
            answers = await asyncio.gather(*flushes, return_exceptions=True)
            assert [type(answer) for answer in answers].count(Rejected) == 1
            bad = jobs[2]
            assert isinstance(answers[2], Rejected)
            assert bad.held
            assert pull.held == 1
            await bad.heartbeat()
            bad.set_queue("fine")
            assert await bad.release() is JobState.PAUSED
            assert {(await client.get(held.id)).queue for held in jobs} == {"fine"}
            assert (await stored(client, 2))[1]["vm_state"] == b"staged"

    async def test_one_that_the_store_never_answered_is_told_so(self, store: Backend, make_client: MakeClient) -> None:
        """The pull ends, and waits for the store for one lease."""
        flaky = Plain(store)
        async with make_client(flaky) as client:
            async with client.pull("hog", lease="500ms") as pull:
                await client.insert([job(i) for i in range(2)])
                first, second = await pull.take(wait="60s")
                flaky.away = True
                first.set_state("completed")
                flush = first.release()
            with pytest.raises(Unavailable, match="unknown"):
                await flush
            with pytest.raises(LeaseLost):
                second.set_state("completed")
            flaky.away = False

    async def test_a_cancellation_is_told_and_wins_over_another_run(self, make_client: MakeClient) -> None:
        async with make_client() as client, client.pull("hog") as pull:
            await client.insert([job()])
            held = await one(pull)
            assert await client.cancel(held.id) is JobState.RUNNING
            await held.heartbeat()
            async with asyncio.timeout(60):
                while not held.cancel.requested:
                    await asyncio.sleep(0)
            held.set_state("available")
            assert await held.release() is JobState.CANCELLED

    async def test_one_that_cannot_be_read_leaves_the_others_alone(self, make_client: MakeClient) -> None:
        async with make_client() as client, client.pull("hog") as pull:
            backend = await client.backend()
            rows = [client.packer.pack(job(i)) for i in range(3)]
            rows[1].cells["vm_state"] = b"\xffnot an envelope"
            await backend.insert(rows)
            jobs = await pull.take(wait="60s")
            with pytest.raises(CodecError):
                jobs[1].section("vm_state")
            assert [jobs[i].section("vm_state") for i in (0, 2)] == [b"v", b"v"]
            jobs[1].set_state("failed", error="unreadable")
            assert await jobs[1].release() is JobState.FAILED


class TestLease:
    async def test_is_renewed_however_long_the_caller_takes(self, make_client: MakeClient) -> None:
        """Even while the caller blocks the loop."""
        async with make_client() as client, client.pull("hog", lease="1s") as pull, make_client() as other:
            await client.insert([job()])
            held = await one(pull)
            time.sleep(2.5)  # noqa: ASYNC251  it blocks the loop
            assert await (await other.backend()).reap(Reap(max_lost=100)) == []
            held.set_state("completed")
            assert await held.release() is JobState.COMPLETED

    async def test_a_heartbeat_tells_that_it_is_lost(self, make_client: MakeClient) -> None:
        async with make_client() as client, client.pull("hog") as pull:
            await client.insert([job()])
            held = await one(pull)
            await held.heartbeat()
            await reap(client)
            with pytest.raises(LeaseLost):
                await held.heartbeat()
            assert held.cancel.reason == "lease lost"
            assert not held.held
            assert pull.held == 0
            with pytest.raises(LeaseLost):
                held.release()

    async def test_what_is_forgotten_goes_back(self, make_client: MakeClient) -> None:
        async with make_client() as client:
            await client.insert([job(i) for i in range(3)])
            async with client.pull("hog") as pull:
                jobs = await pull.take(wait="60s")
                jobs[0].set_state("completed")
                jobs[0].release()
                jobs[1].set_vm_state(b"never released")
            info = [await client.get(held.id) for held in jobs]
            assert [each.state for each in info] == [JobState.COMPLETED, JobState.AVAILABLE, JobState.AVAILABLE]
            assert [(each.attempt, each.lost) for each in info[1:]] == [(0, 0), (0, 0)]
            assert (await stored(client, 1))[1]["vm_state"] == b"v"
            jobs[1].cancel.wait(0)
            with pytest.raises(LeaseLost, match="the pull was closed"):
                jobs[1].set_state("completed")
            assert (await client.stats(["hog"])).workers == []

    async def test_leaving_the_loop_or_closing_the_client_closes_it(self, make_client: MakeClient) -> None:
        async with make_client() as client:
            await client.insert([job(i) for i in range(4)])
            async for _ in client.pull("hog", batch=2):
                break
            gc.collect()
            pull = client.pull("hog")
            async with asyncio.timeout(60):
                while len(await pull.take(wait="60s")) + pull.held < 8:
                    if pull.held == 4:
                        break
        async with make_client() as client:
            assert {(await stored(client, i))[0] for i in range(4)} == {JobState.AVAILABLE}

    async def test_a_job_on_its_last_chance_comes_alone(self, make_client: MakeClient) -> None:
        async with make_client(max_lost=1) as client, client.pull("hog") as pull:
            await client.insert([job(0)])
            async with client.pull("hog") as victim:
                await one(victim)
                await reap(client)
            await client.insert([job(i) for i in (1, 2)])
            first = await pull.take(wait="60s")
            for held in first:
                held.set_state("completed")
                await held.release()
            rest = await pull.take(wait="60s")
            assert {len(first), len(rest)} == {1, 2}
            suspect = next(jobs for jobs in (first, rest) if len(jobs) == 1)[0]
            assert (suspect.id, suspect.lost) == (UUID(int=1), 1)

    async def test_does_the_upkeep_that_workers_do(self, make_client: MakeClient) -> None:
        told = Told()
        client = make_client(lease="300ms", reap="20ms")
        client.guest = False
        client.observers.add(told)
        async with client:
            await client.insert([job()])
            backend = await client.backend()
            assert (await backend.claim(Claim("dead", ("hog",), 1, 10_000))).jobs
            async with client.pull("hog") as pull:
                await told.wait_for(EventKind.STALLED)
                assert (await one(pull)).lost == 1


class TestHealth:
    async def test_tells_whether_jobs_get_through(self, make_client: MakeClient) -> None:
        async with make_client() as client:
            pull = client.pull("hog")
            assert not pull.health().ok
            async with pull:
                await client.insert([job()])
                held = await one(pull)
                assert pull.health().ok
                assert pull.health().busy == 1
                pull._takers.active -= 3_600
                assert pull.health().ok, "a long batch is no fault"
                held.set_state("completed")
                await held.release()
                assert pull.health().ok
                pull._takers.active -= 3_600
                health = pull.health()
                assert (health.consuming, health.beating) == (False, True)
                assert "nobody has asked" in health.detail
            assert not pull.health().ok

    async def test_apps_pull_too(self, make_app: Callable[..., App]) -> None:
        app = make_app()

        @app.task(queue="mail", name="mail")
        async def mail(to: str) -> None: ...

        async with app:
            await mail.enqueue("ada")
            async for jobs in app.pull("mail"):
                assert [each.section("parameters") for each in jobs] == [b'{"to":"ada"}']
                break
