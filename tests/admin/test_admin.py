"""The admin API on every store: searches, counts, timelines, statistics."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from headrace import Admin, App, JobState, MomentKind, NewJob, Redaction, immediate
from headrace.core.clock import ManualClock
from headrace.errors import ConfigError, JobNotFound
from headrace.seam.records import Beat, Claim, JobKey
from tests.facades.harness import Store

SECOND = 1_000_000
START = 1_800_000_000 * SECOND


class Shop:
    """An app with two tasks, one of which fails."""

    def __init__(self, store: Store, **given: Any) -> None:
        self.clock = ManualClock(START)
        self.app: App = store.app(clock=self.clock, **given)
        self.admin = Admin(self.app.client)

        @self.app.task(queue="mail", name="send")
        async def send(user: int, token: str = "s3cret") -> int:
            return user

        @self.app.task(queue="pay", name="charge", retry=immediate(3))
        async def charge(user: int) -> None:
            self.clock.advance("2s")
            raise ValueError(f"no card of {user}")

        self.send, self.charge = send, charge


async def test_pages_find_each_job_once(store: Store) -> None:
    shop = Shop(store)
    async with shop.app:
        await shop.app.enqueue_many([shop.send.job(user) for user in range(1_203)])
        for filter, expected in (("queue:mail", 1_203), ("args.user>=600", 603), ("send -args.user>9", 10)):
            seen: list[UUID] = []
            after, pages = None, 0
            while True:
                page = await shop.admin.jobs(filter, after, limit=100)
                seen += [job.id for job in page.jobs]
                pages += 1
                if (after := page.after) is None:
                    break
            assert len(seen) == len(set(seen)) == expected
            assert seen == sorted(seen, reverse=True), "newest first"
            assert pages <= 14
            assert await shop.admin.count(filter) == type(await shop.admin.count(filter))(expected)


async def test_a_search_that_finds_nothing_is_bounded(store: Store) -> None:
    shop = Shop(store)
    async with shop.app:
        await shop.app.enqueue_many([shop.send.job(user) for user in range(6_000)])
        first = await shop.admin.jobs("tenant:acme task~nothing", limit=10)
        assert (first.jobs, first.after) == ([], None), "the store finds no job of that tenant"
        first = await shop.admin.jobs("task~nothing", limit=10)
        assert (first.jobs, first.looked_at) == ([], 5_000)
        assert first.after is not None
        rest = await shop.admin.jobs("task~nothing", first.after, limit=10)
        assert (rest.jobs, rest.looked_at, rest.after) == ([], 1_000, None)
        with pytest.raises(ConfigError, match="after: expected"):
            await shop.admin.jobs("", "bogus")
        with pytest.raises(ConfigError, match="after: expected"):
            await shop.admin.jobs("", ".bogus")


async def test_what_is_secret_is_not_shown(store: Store) -> None:
    shop = Shop(store)
    async with shop.app:
        handle = await shop.send.options(headers={"authorization": "Bearer x", "trace": "1"}).enqueue(7, "s3cret")
        details = await shop.admin.job(handle.id)
        assert details.job.args == {"user": 7, "token": "•••"}
        assert details.job.headers == {"authorization": "•••", "trace": "1"}
        assert (await shop.admin.job(handle.id, reveal=True)).job.args == {"user": 7, "token": "s3cret"}
        shy = Admin(shop.app.client, redaction=Redaction.ALL)
        assert (await shy.job(handle.id)).job.args == {"user": "‹int›", "token": "•••"}
        [listed] = (await shop.admin.jobs()).jobs
        assert (listed.args, listed.headers["authorization"]) == (None, "•••")


async def test_filters_test_what_is_shown_and_nothing_else(memory: Store) -> None:
    """Who may not see a value may not guess it, letter by letter, either."""
    shop = Shop(memory)
    async with shop.app:
        made = shop.send.options(headers={"authorization": "Bearer s3cret", "trace": "1"})
        handle = await made.enqueue(7, "s3cret")
        for guess in (
            "args.token~s3",
            "args.token:s3cret",
            'args.token>"s3c"',
            "-args.token:x",
            "header.authorization~s3",
        ):
            for asked in (shop.admin.count(guess), shop.admin.jobs(guess), shop.admin.submit(guess, "delete")):
                with pytest.raises(ConfigError, match="one that redaction hides"):
                    await asked
        assert (await shop.admin.count("args.user:7 header.trace:1")).number == 1
        sees_all = Admin(shop.app.client, redaction=Redaction.NOTHING)
        assert (await sees_all.count("args.token~s3 header.authorization~s3cret")).number == 1
        shy = Admin(shop.app.client, redaction=Redaction.ALL)
        for guess in ("args.user:7", "args.user>6", "header.trace:1"):
            with pytest.raises(ConfigError, match="one that redaction hides"):
                await shy.count(guess)
        assert (await shy.count(f"id:{handle.id}")).number == 1


async def test_secrets_inside_a_value_are_not_found_by_the_value(memory: Store) -> None:
    shop = Shop(memory)
    async with shop.app:
        await shop.app.client.insert(
            [NewJob(task="send", queue="mail", args={"card": 1, "who": {"pin_token": "s3cret"}})]
        )
        assert (await shop.admin.count("args.who~s3cret")).number == 0
        assert (await shop.admin.count("args.who~pin_token")).number == 1


async def test_with_all_hidden_errors_tell_their_types_alone(store: Store) -> None:
    shop = Shop(store)
    async with shop.app:
        handle = await shop.charge.enqueue(4111)
        await shop.app.drain()
        shy = Admin(shop.app.client, redaction=Redaction.ALL)
        assert "no card of 4111" in str(await shop.admin.job(handle.id))
        assert "4111" not in str(await shy.job(handle.id))
        assert "ValueError" in str(await shy.job(handle.id))
        assert (await shop.admin.last_errors([handle.id]))[handle.id] == "ValueError: no card of 4111"
        assert (await shy.last_errors([handle.id]))[handle.id] == "ValueError: •••"
        assert [(await one.count("error~4111")).number for one in (shop.admin, shy)] == [1, 0]
        assert (await shy.count("error~ValueError")).number == 1
        assert "4111" in str(await shy.job(handle.id, reveal=True))


async def test_the_timeline_of_a_dead_letter(store: Store) -> None:
    shop = Shop(store)
    async with shop.app:
        handle = await shop.charge.options(key="user-7").enqueue(7)
        shop.clock.advance("5s")
        await shop.app.drain()
        details = await shop.admin.job(JobKey("pay", "user-7"))
        assert details.job.id == handle.id
        told = details.timeline
        kinds = [MomentKind.ENQUEUED, *[MomentKind.STARTED, MomentKind.FAILED] * 3, MomentKind.ENDED]
        assert [moment.kind for moment in told.moments] == kinds
        seconds = [round((moment.at.timestamp() if moment.at else 0) - START / SECOND, 3) for moment in told.moments]
        assert seconds == [0, 5, 7, 7, 9, 9, 11, 11]
        assert [moment.attempt for moment in told.moments] == [0, 1, 1, 2, 2, 3, 3, 0]
        failed = [moment for moment in told.moments if moment.kind is MomentKind.FAILED]
        assert {moment.detail for moment in failed} == {"ValueError: no card of 7"}
        assert {moment.seconds for moment in failed} == {2.0}
        assert all(moment.worker for moment in told.moments[1:-1])
        assert [bool(moment.traceback) for moment in failed] == [False, False, True]
        assert told.moments[-1].detail == "failed: retries exhausted"
        assert (told.forgotten, told.lost) == (0, 0)


async def test_the_timeline_of_jobs_that_run_wait_and_completed(store: Store) -> None:
    shop = Shop(store)
    async with shop.app:
        done = await shop.send.enqueue(1)
        shop.clock.advance("3s")
        await shop.app.drain()
        kinds = [MomentKind.ENQUEUED, MomentKind.STARTED, MomentKind.ENDED]
        details = await shop.admin.job(done.id)
        assert [moment.kind for moment in details.timeline.moments] == kinds
        assert details.job.started_at is not None
        assert details.job.started_at.timestamp() == START / SECOND + 3
        later = await shop.send.options(delay="1h").enqueue(2)
        moments = (await shop.admin.job(later.id)).timeline.moments
        assert [moment.kind for moment in moments] == [MomentKind.ENQUEUED, MomentKind.DUE]

        running = await shop.send.enqueue(3)
        backend = await shop.app.client.backend()
        await backend.renew(Beat("h", "web-1", ("mail",), 30 * SECOND), shop.clock.stamp())
        await backend.claim(Claim("h", ("mail",), 1, 30 * SECOND), shop.clock.stamp())
        details = await shop.admin.job(running.id)
        assert [moment.kind for moment in details.timeline.moments] == kinds[:2]
        assert (details.job.state, details.timeline.moments[-1].worker) == (JobState.RUNNING, "web-1")


async def test_many_failures_leave_the_last_twenty(memory: Store) -> None:
    shop = Shop(memory)

    @shop.app.task(queue="pay", name="stubborn", retry=immediate(30))
    async def stubborn() -> None:
        raise ValueError("again")

    async with shop.app:
        handle = await stubborn.enqueue()
        await shop.app.drain()
        told = (await shop.admin.job(handle.id)).timeline
        assert [m.attempt for m in told.moments if m.kind is MomentKind.FAILED] == [*range(11, 31)]
        assert told.forgotten == 10


async def test_statistics(store: Store) -> None:
    shop = Shop(store)
    async with shop.app:
        await shop.send.enqueue(1)
        await shop.charge.enqueue(1)
        backend = await shop.app.client.backend()
        await backend.renew(Beat("h", "web-1", ("mail",), 30 * SECOND, slots=4, busy=1), shop.clock.stamp())
        shop.clock.advance("2s")
        overview = await shop.admin.overview()
        assert [(one.name, one.available, one.workers, one.slots) for one in overview.queues] == [
            ("mail", 1, 1, 4),
            ("pay", 1, 0, 0),
        ]
        assert [(one.name, one.seen_seconds, one.busy) for one in overview.workers] == [("web-1", 2.0, 1)]
        assert overview.queues[0].oldest_due_seconds == 2.0
        assert not overview.from_replica
        [mail] = await shop.admin.queues("mail")
        assert mail == overview.queues[0]
        assert await shop.admin.workers() == overview.workers
        with pytest.raises(JobNotFound, match="no job 'nobody'"):
            await shop.admin.job(JobKey("mail", "nobody"))
        with pytest.raises(JobNotFound, match="no job"):
            await shop.admin.job(UUID(int=7))


async def test_a_tenant_is_paused_in_all_queues_and_resumed(store: Store) -> None:
    """Each is noted, and in which queues it was is told."""
    shop = Shop(store)
    async with shop.app:
        for task in (shop.send, shop.charge):
            await task.options(tenant="acme").enqueue(1)
            await task.options(tenant="other").enqueue(2)
        backend, upkeep = await shop.app.client.backend(), shop.admin.upkeep
        assert sorted(await upkeep.pause_tenant("acme", "1h", actor="ada")) == ["mail", "pay"]
        asked = Claim("w", ("mail", "pay"), 10, SECOND)
        assert [job.tenant for job in (await backend.claim(asked, shop.clock.stamp())).jobs] == ["other", "other"]
        assert sorted(await upkeep.resume_tenant("acme", actor="bob")) == ["mail", "pay"]
        assert [job.tenant for job in (await backend.claim(asked, shop.clock.stamp())).jobs] == ["acme", "acme"]
        assert list(await upkeep.resume_tenant("acme")) == []
        noted = [one for one in await shop.admin.audit.entries() if one.action.endswith("tenant")]
    assert [(one.actor, one.action, one.details) for one in noted[::-1][:2]] == [
        ("ada", "pause tenant", {"tenant": "acme", "lasts": "1h"}),
        ("bob", "resume tenant", {"tenant": "acme"}),
    ]
