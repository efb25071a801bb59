"""Everything that can be clicked, and what it does to the store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import UUID

from playwright.sync_api import Page, expect

from headrace import Admin, App, Every, JobState
from headrace.seam.records import Claim, Row, Settlement
from tests.dashboard.conftest import Watched
from tests.dashboard.place import Place, make_app

HOUR = 3_600_000_000


class Clicker:
    """A person at the dashboard."""

    def __init__(self, place: Place, page: Page) -> None:
        self.place = place
        self.page = page
        self.app: App = place.app

    def go(self, path: str) -> None:
        self.page.goto(self.place.url + path)

    def press(self, name: str, told: str, *, sure: bool = False, within: str = "main") -> None:
        """Press a button, and read what became of it."""
        self.page.locator(within).get_by_role("button", name=name, exact=True).first.click()
        if sure:
            self.page.locator("#confirm [data-yes]").click()
        self.told(told)

    def told(self, sentence: str) -> None:
        """A toast goes by itself after some seconds, but the page remembers the last one."""
        toasts = self.page.locator("#toasts")
        expect(toasts).to_have_attribute("data-last", re.compile(re.escape(sentence)))
        toasts.evaluate("(one) => { one.dataset.last = ''; }")

    def state(self, job: UUID) -> JobState:
        async def look() -> JobState:
            return (await self.app.client.get(job)).state

        return self.place.run(look())


def served(watched: Watched, tmp_path: Path) -> Place:
    app = make_app(url=f"sqlite:///{tmp_path}/jobs.db?durability=normal", vault={"url": f"file://{tmp_path}/vault"})
    return Place(app, watched.page, writes=True)


def test_jobs(watched: Watched, tmp_path: Path) -> None:
    with served(watched, tmp_path) as place:
        person = Clicker(place, watched.page)
        task: Any = place.app.tasks["mail.welcome"]

        async def enqueue(*users: int) -> list[UUID]:
            return [(await task.options(delay="1h").enqueue(user, "a secret")).id for user in users]

        [job] = place.run(enqueue(7))
        person.go(f"/job/{job}")
        expect(watched.page.locator(".why")).to_contain_text("it is scheduled, in")
        expect(watched.page.locator("#sections")).not_to_contain_text("a secret")
        person.page.locator("#sections").get_by_role("button", name="Reveal").click()
        person.page.locator("#confirm [data-yes]").click()
        expect(watched.page.locator("#sections")).to_contain_text("a secret")
        person.press("Pause", "1 job paused")
        assert person.state(job) is JobState.PAUSED
        person.press("Resume", "1 job resumed")
        assert person.state(job) is JobState.AVAILABLE
        person.press("Run now", "1 job rescheduled")
        assert place.run(place.app.client.why(job)).code == "no_worker"
        person.press("Cancel", "1 job cancelled")
        assert person.state(job) is JobState.CANCELLED
        person.press("Requeue", "1 job requeued")
        assert person.state(job) is JobState.AVAILABLE
        person.press("Delete", "1 job deleted", sure=True)
        assert place.run(place.app.client.fetch(job)) is None

        several = place.run(enqueue(1, 2, 3))
        person.go("/jobs")
        watched.page.locator("[data-all]").check()
        expect(watched.page.locator("#chosen [data-count]")).to_have_text("3")
        watched.page.locator("#chosen select").select_option("move")
        watched.page.locator("#chosen [data-argument]").fill("elsewhere")
        person.press("Do it", "3 jobs moved")
        assert {place.run(place.app.client.get(one)).queue for one in several} == {"elsewhere"}

        entries = place.run(Admin(place.app.client).audit.entries())
        assert [one.action for one in entries] == [
            "move", "delete", "requeue", "cancel", "reschedule", "resume", "pause", "reveal",
        ]  # fmt: skip
        person.go("/audit")
        expect(watched.page.locator("tbody tr")).to_have_count(8)


def test_many_jobs_at_once(watched: Watched, tmp_path: Path) -> None:
    """Preview, confirm, progress; and one that is stopped."""
    with served(watched, tmp_path) as place:
        person, page = Clicker(place, watched.page), watched.page
        task: Any = place.app.tasks["billing.charge"]

        async def failing() -> None:
            await place.app.client.insert([task.job(order) for order in range(30)])
            await place.app.drain()

        async def waiting() -> int:
            return sum(one.available for one in await Admin(place.app.client).queues("billing"))

        place.run(failing())
        person.go("/dead")
        expect(page.locator(".tile").first).to_contain_text("30")
        page.get_by_role("button", name="Requeue all that match").click()
        expect(page.locator("#dialog h2")).to_have_text("Requeue: 30 jobs")
        page.locator("#dialog [data-submit-bulk]").click()
        page.wait_for_url("**/operation/*")
        expect(page.locator("h1")).to_contain_text("completed")
        expect(page.locator("main")).to_contain_text("30 of 30 met, 30 changed.")
        assert place.run(waiting()) == 30

        person.go("/jobs?filter=queue:billing")
        page.get_by_text("Change all that match").click()
        page.locator(".bulk select").select_option("delete")
        page.get_by_role("button", name="Preview").click()
        expect(page.locator("#dialog h2")).to_have_text("Delete: 30 jobs")
        page.locator("#dialog [data-close]").click()
        assert place.run(waiting()) == 30

        place.run(place.app.client.insert([task.job(order) for order in range(450)]))
        slow = place.run(Admin(place.app.client).submit("queue:billing", "delete", pace=1))
        person.go(f"/operation/{slow.id}")
        page.get_by_role("button", name="Stop").click()
        page.locator("#confirm [data-yes]").click()
        person.told("the operation stops")
        place.until(lambda: stopped(place, slow.id))


async def stopped(place: Place, operation: str) -> bool:
    return (await Admin(place.app.client).operation(operation)).state.terminal


def test_queues_schedules_and_upkeep(watched: Watched, tmp_path: Path) -> None:
    with served(watched, tmp_path) as place:
        person, app = Clicker(place, watched.page), place.app
        task: Any = app.tasks["mail.welcome"]

        async def begin() -> None:
            await app.policies.set("mail", tenant_running=2)
            await task.options(tenant="acme", delay="1h").enqueue(1)
            await app.schedules.put(Every("1h", task.job(2), name="hourly"))

        place.run(begin())
        person.go("/queue?name=mail")
        person.press("Pause", "queue mail is paused")
        assert place.run(Admin(app.client).queues("mail"))[0].paused
        person.press("Resume", "queue mail is resumed")
        assert not place.run(Admin(app.client).queues("mail"))[0].paused
        watched.page.locator("input[name=running]").fill("50")
        watched.page.locator("input[name=rate]").fill("100/s")
        person.press("Store limits", "the rules of queue mail are stored")
        policy = place.run(app.policies.get("mail"))
        assert (policy.running, policy.rate, policy.tenant_running) == (50, "100/s", 2)

        person.go("/tenants")
        person.press("Pause", "tenant acme in queue mail is paused")
        assert [one.paused for one in place.run(app.policies.tenants("mail"))] == [True]
        person.press("Resume", "tenant acme in queue mail is resumed")
        watched.page.locator("input[name=running]").fill("7")
        person.press("Limit", "tenant acme may run 7 jobs at a time")
        assert [(one.paused, one.limit) for one in place.run(app.policies.tenants("mail"))] == [(False, 7)]

        person.go("/schedules")
        expect(watched.page.locator("tbody tr")).to_contain_text("every 1h")
        person.press("Run now", "is queued")
        assert len(place.run(app.schedules.history("hourly"))) == 1
        person.press("Pause", "schedule hourly is paused")
        assert not place.run(app.schedules.get("hourly")).enabled
        person.go("/schedule?name=hourly")
        person.press("Resume", "goes on with its next slot")
        assert place.run(app.schedules.get("hourly")).enabled

        person.go("/janitor")
        person.press("Run now", "0 jobs removed", sure=True)
        assert len(place.run(app.janitor.log())) == 1

        person.go("/store")
        watched.page.locator("input[name=mebibytes]").fill("64")
        person.press("Set budget", "the budget is 64 MiB")
        assert place.run(app.janitor.usage()).limit == 64 << 20


def test_what_needs_more_than_one_click(watched: Watched, tmp_path: Path) -> None:
    """Actions with an argument, on chosen dead letters, from the list of queues, and those that undo or force."""
    safety = {"floor": 1, "share": 0.05}
    app = make_app(url=f"sqlite:///{tmp_path}/jobs.db?durability=normal", retention={"safety": safety})
    with Place(app, watched.page, writes=True) as place:
        person, page = Clicker(place, watched.page), watched.page
        welcome: Any = app.tasks["mail.welcome"]
        charge: Any = app.tasks["billing.charge"]

        async def begin() -> list[UUID]:
            await end_long_ago(app, "old", 20)
            await app.client.insert([charge.job(order) for order in range(3)])
            await app.drain()
            return [(await welcome.options(delay="1h").enqueue(user)).id for user in range(2)]

        jobs = place.run(begin())
        for action, argument, told in (
            ("prioritise", "7", "2 jobs given another priority"),
            ("reschedule", "5h", "2 jobs rescheduled"),
        ):
            person.go("/jobs?filter=queue:mail+state:scheduled")
            page.locator("[data-all]").check()
            page.locator("#chosen select").select_option(action)
            page.locator("#chosen [data-argument]").fill(argument)
            person.press("Do it", told)
        found = [place.run(app.client.get(one)) for one in jobs]
        assert {one.priority for one in found} == {7}
        now = place.run(app.client.store_now())
        assert all(4 * HOUR < one.run_at.timestamp() * 1e6 - now <= 5 * HOUR for one in found if one.run_at)

        person.go("/queue?name=mail")
        person.press("Pause for 1h", "queue mail is paused")
        assert place.run(Admin(app.client).queues("mail"))[0].paused
        [entry] = place.run(Admin(app.client).audit.entries(limit=1))
        assert (entry.action, entry.details["lasts"]) == ("pause queue", "1h")
        person.go("/queues?name=mail")
        person.press("Resume", "queue mail is resumed")
        assert not place.run(Admin(app.client).queues("mail"))[0].paused
        person.press("Pause", "queue mail is paused")
        assert place.run(Admin(app.client).queues("mail"))[0].paused

        person.go("/dead")
        page.locator("tbody [name=id]").first.check()
        page.locator("#chosen select").select_option("requeue")
        person.press("Do it", "1 job requeued")
        billing = place.run(Admin(app.client).queues("billing"))[0]
        assert (billing.available, billing.failed) == (1, 2)
        person.go("/dead")
        page.get_by_role("button", name="Delete all that match").click()
        expect(page.locator("#dialog h2")).to_have_text("Delete: 2 jobs")
        page.locator("#dialog [data-submit-bulk]").click()
        page.wait_for_url("**/operation/*")
        expect(page.locator("h1")).to_contain_text("completed")
        assert place.run(Admin(app.client).queues("billing"))[0].failed == 0

        person.go("/janitor")
        with page.expect_navigation():  # it is loaded anew when it has told
            person.press("Run now", "rules that are new", sure=True)
        assert place.run(Admin(app.client).queues("old"))[0].completed == 20
        with page.expect_navigation():
            person.press("Run all the same", "20 jobs removed", sure=True)
        assert place.run(Admin(app.client).queues("old")) == []

        person.go("/store")
        page.locator("input[name=mebibytes]").fill("64")
        person.press("Set budget", "the budget is 64 MiB")
        page.locator("input[name=mebibytes]").fill("")
        person.press("Set budget", "the store has no budget")
        assert place.run(app.janitor.usage()).budget is False


async def end_long_ago(app: App, queue: str, count: int) -> None:
    """Jobs that completed two days ago."""
    backend, at = await app.client.backend(), await app.client.store_now() - 48 * HOUR
    await backend.insert([Row(id=bytes([n]) * 16, queue=queue, task="t", cells={}) for n in range(count)], at)
    jobs = (await backend.claim(Claim("h", (queue,), count, 96 * HOUR), at)).jobs
    ends = [Settlement(job.id, job.epoch, "h", JobState.COMPLETED) for job in jobs]
    assert len(await backend.finish(ends, at)) == count


def test_sql_over_the_vault(watched: Watched, tmp_path: Path) -> None:
    with served(watched, tmp_path) as place:
        person, page = Clicker(place, watched.page), watched.page
        task: Any = place.app.tasks["mail.welcome"]

        async def end() -> None:
            await place.app.client.insert([task.job(user) for user in range(5)])
            await place.app.drain()

        place.run(end())
        person.go("/vault")
        page.get_by_role("button", name="Run").click()
        expect(page.locator("#answer td")).to_have_text(["mail.welcome", "completed", "5"])
        for sql, told in (
            (f"SELECT * FROM read_text('{tmp_path}/jobs.db')", "disabled"),
            ("COPY jobs TO '/tmp/stolen.csv'", "expected one SELECT"),
            ("SET enable_external_access = true", "expected one SELECT"),
            ("SELECT 1; SELECT 2", "expected one SELECT"),
        ):
            page.locator("textarea").fill(sql)
            page.get_by_role("button", name="Run").click()
            person.told(told)
        assert all("400" in one for one in watched.complaints), watched.complaints
        watched.complaints.clear()


def test_a_viewer_sees_no_buttons(watched: Watched) -> None:
    with Place(make_app(), watched.page) as place:
        task: Any = place.app.tasks["mail.welcome"]
        job = place.run(task.enqueue(1)).id
        for path in ("/queues", "/queue?name=mail", "/jobs", f"/job/{job}", "/janitor", "/store", "/schedules"):
            watched.page.goto(place.url + path)
            expect(watched.page.locator("[hx-post]")).to_have_count(0)
            expect(watched.page.locator(".pill.quiet")).to_have_text("read-only")


def test_the_page_is_live_and_obeys_the_keyboard(watched: Watched) -> None:
    """A page follows the store by itself; keys go elsewhere, move through rows, and stop the refreshing."""
    app = make_app()
    with Place(app, watched.page, writes=True) as place:
        task: Any = app.tasks["mail.welcome"]
        page = watched.page
        page.goto(f"{place.url}/jobs")
        expect(page.locator("tbody tr")).to_have_count(0)
        job = place.run(task.enqueue(1)).id
        expect(page.locator("tbody tr")).to_have_count(1)
        page.keyboard.press("j")
        page.keyboard.press("x")
        expect(page.locator("#chosen [data-count]")).to_have_text("1")
        page.keyboard.press("x")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/job/{job}")
        page.keyboard.press("g")
        page.keyboard.press("q")
        page.wait_for_url("**/queues")
        page.keyboard.press("/")
        page.keyboard.type("state:available")
        page.keyboard.press("Enter")
        page.wait_for_url("**/jobs?filter=state**")
        page.keyboard.press("?")
        expect(page.locator("#help")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("l")
        expect(page.locator("[data-toggle-live]")).to_have_text("stopped")
