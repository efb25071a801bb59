"""The public API as a type checker sees it; never run, only checked (see ``test_api.py``).

``assert_type`` pins what things are. A call that must be refused carries the ignore that the refusal needs, so that
it is an error when the checker no longer complains.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

import msgspec

import headrace
from headrace import (
    Action,
    Admin,
    Again,
    App,
    AsyncBound,
    AuditEntry,
    BatchTask,
    Bound,
    Bundle,
    Cancelled,
    CancelToken,
    Changed,
    Client,
    Completed,
    Counters,
    Crawler,
    Cron,
    CurrentJob,
    Cursor,
    Done,
    Duplicate,
    Ending,
    Event,
    EventKind,
    Every,
    Fail,
    Flush,
    Handle,
    Janitor,
    JanitorRun,
    JanitorStep,
    Job,
    JobCount,
    JobDetails,
    JobFields,
    JobInfo,
    JobPage,
    JobState,
    JobStatus,
    JsonSerde,
    KeepInfo,
    KeptView,
    Lease,
    Middleware,
    Moment,
    MomentKind,
    MsgpackSerde,
    NewJob,
    Next,
    Operation,
    Outcome,
    Overview,
    Part,
    Patch,
    Paused,
    PlainMiddleware,
    Policies,
    PolicyInfo,
    Progress,
    Pull,
    PulledJob,
    Queue,
    Queued,
    QueueView,
    RawSerde,
    Redaction,
    RemovedInfo,
    Replayed,
    Retry,
    RetryPolicy,
    RowSink,
    ScheduleHealth,
    ScheduleInfo,
    Schedules,
    Sections,
    SectionView,
    Serde,
    Settings,
    Stop,
    Streams,
    Subject,
    SyncApp,
    SyncHandle,
    SyncQueue,
    Table,
    TableStats,
    TableSweep,
    Task,
    TenantInfo,
    TickInfo,
    TierCount,
    Timeline,
    Tracker,
    UsageInfo,
    Vault,
    VaultFile,
    Visited,
    Why,
    WhyCode,
    WorkerView,
    connect,
    content_id,
    current_job,
    exponential,
    forever,
    gentle,
    given,
    immediate,
    never,
    persistent,
)
from headrace.admin.firing import AlertChange
from headrace.errors import HeadraceError, JobFailed, LeaseLost, QueueFull, SafetyStop
from headrace.types import Failure


class Image:
    url: str


class Thumb:
    url: str


# -- the names


def names() -> None:
    assert_type(headrace.App("memory://"), App)
    assert_type(connect("memory://"), Client)
    assert_type(connect(), Client)
    assert_type(connect(Settings()), Client)
    assert_type(content_id({"a": 1}), str)
    assert_type(exponential(3, base="1s", cap=timedelta(hours=1), retry_on=(OSError,)), RetryPolicy)
    assert_type(immediate(), RetryPolicy)
    assert_type(never(), RetryPolicy)
    assert_type(forever(base="1s"), RetryPolicy)
    assert_type(persistent(20, jitter=False), RetryPolicy)
    assert_type(gentle(), RetryPolicy)
    connect(5)  # type: ignore[arg-type]
    exponential("3")  # type: ignore[arg-type]
    exponential(retry_on=(5,))  # type: ignore[arg-type]


# -- tasks

app = App("memory://")


@app.task
async def bare(a: int, b: str = "x") -> bytes:
    return b""


@app.task(queue="mail", retry=exponential(5), timeout="30s", result_ttl=60, priority=1, overflow="o", when_full="block")
async def configured(user_id: int, *, template: str = "hello") -> str:
    return template


@app.task
def plain(n: int) -> int:
    return n


@app.task(executor="process")
def plain_configured(n: int) -> int:
    return n


@app.task
async def with_job(job: Job[None], a: int) -> float:
    return 1.0


@app.task(queue="x")
async def with_job_configured(job: Job[object], a: int) -> float:
    return 1.0


async def tasks() -> None:
    assert_type(await bare.enqueue(1), Handle[bytes])
    assert_type(await bare.enqueue(1, b="y"), Handle[bytes])
    assert_type(await bare.call(1, "y"), bytes)
    assert_type(await configured.enqueue(42), Handle[str])
    assert_type(await configured.call(42, template="bye"), str)
    assert_type(await plain.enqueue(1), Handle[int])
    assert_type(await plain.call(1), int)
    assert_type(await plain_configured.call(1), int)
    assert_type(await with_job.call(1), float)
    assert_type(await with_job_configured.enqueue(a=1), Handle[float])
    assert_type(bare.job(1), NewJob)
    assert_type(bare.job(1).job_id, UUID | None)
    assert_type(configured.name, str)
    assert_type(await configured.options(delay="10m", key="k", tenant="acme").call(42), str)
    assert_type(await configured.options(run_at=datetime.max).enqueue(42), Handle[str])
    assert_type(await configured.options(group="g", when_full="block", overflow="other").enqueue(42), Handle[str])
    assert_type(await app.enqueue_many([bare.job(1), plain.job(2)]), list[Handle[Any]])
    assert_type(await app.enqueue_named("x", {"a": 1}), Handle[Any])
    assert_type(await app.cancel("x"), JobState)
    assert_type(await app.close(), None)

    await bare.enqueue()  # type: ignore[call-arg]
    await bare.enqueue("one")  # type: ignore[arg-type]
    await bare.enqueue(1, "x", 3)  # type: ignore[call-arg]
    await bare.enqueue(1, c=3)  # type: ignore[call-arg]
    await bare.call("one")  # type: ignore[arg-type]
    bare.job("one")  # type: ignore[arg-type]
    await configured.enqueue(42, "positional")  # type: ignore[call-arg]
    await configured.options(delay="10m").enqueue("42")  # type: ignore[arg-type]
    await with_job.enqueue()  # type: ignore[call-arg]
    await with_job.enqueue("one")  # type: ignore[arg-type]
    await plain.enqueue("one")  # type: ignore[arg-type]
    await app.enqueue_many(["a job"])  # type: ignore[list-item]
    await app.enqueue_many(bare.job(1))  # type: ignore[arg-type]


def defining() -> None:
    app.task(5)  # type: ignore[call-overload]
    app.task(queue=5)  # type: ignore[call-overload]
    app.task(bogus=1)  # type: ignore[call-overload]
    app.task(retry=3)  # type: ignore[call-overload]
    app.task(timeout=b"30s")  # type: ignore[call-overload]
    app.task(overflow=5)  # type: ignore[call-overload]
    app.task(when_full=True)  # type: ignore[call-overload]
    app.batch(size="many")  # type: ignore[call-overload]
    app.batch(overflow=5)  # type: ignore[call-overload]
    App(5)  # type: ignore[arg-type]


async def handles(handle: Handle[int]) -> None:
    assert_type(handle.id, UUID)
    assert_type(handle.duplicate, bool)
    assert_type(handle.state, JobState)
    assert_type(await handle.result(), int)
    assert_type(await handle.result("5s"), int)
    assert_type(await handle.info(), JobInfo)
    assert_type(await handle.progress(), Progress | None)
    assert_type([part async for part in handle.stream()], list[Part])
    assert_type(handle.replaced, bool)
    await handle.result(b"5s")  # type: ignore[arg-type]


# -- batches


@app.batch(size=500)
async def batch(jobs: list[Job[Image]]) -> list[Outcome]:
    assert_type(jobs[0].payload, Image)
    return [Done() for _ in jobs]


async def batches(image: Image) -> None:
    assert_type(batch.job(image), NewJob)
    assert_type(await batch.enqueue(image, priority=1), Handle[Any])
    batch.job("not an image")  # type: ignore[arg-type]
    await batch.enqueue(5)  # type: ignore[arg-type]


# -- schedules


@app.task
async def nightly(region: str = "all") -> None: ...


assert_type(app.every("30s", nightly.job("north"), name="north", jitter=0), str)
assert_type(app.cron("@daily", nightly.job(), tz="Europe/Madrid"), str)


@app.dynamic_interval("north")
def interval(name: str) -> str | None:
    return "5s"


async def schedules(schedules: Schedules, when: datetime) -> None:
    assert_type(app.schedules, Schedules)
    assert_type(await schedules.put(Every("30s", nightly.job(), overlap="skip", start=when)), ScheduleInfo)
    assert_type(await schedules.put(Every("30s", nightly.job(), overlap="queue")), ScheduleInfo)
    assert_type(await schedules.put(Cron("0 6 * * *", nightly.job(), tz="UTC", misfire="all")), ScheduleInfo)
    assert_type(await schedules.update("north", every=timedelta(minutes=1)), ScheduleInfo)
    assert_type(await schedules.enable("north"), ScheduleInfo)
    assert_type(await schedules.disable("north", cancel_pending=True), ScheduleInfo)
    assert_type(await schedules.get("north"), ScheduleInfo)
    assert_type(await schedules.list(tenant="acme", queue="mail", after="a", limit=10), Sequence[ScheduleInfo])
    assert_type(await schedules.next("north", 3), Sequence[datetime])
    assert_type(await schedules.history("north", 3, before=when), Sequence[TickInfo])
    assert_type(await schedules.stale(tenant="acme", queue="mail", after="a", limit=10), Sequence[ScheduleInfo])
    assert_type(await schedules.health("north", period="7d", slow=timedelta(minutes=1)), Sequence[ScheduleHealth])
    assert_type(await schedules.run("north"), UUID)
    assert_type(await schedules.backfill("north", when, when, dry_run=True), int)
    assert_type(await schedules.delete("north"), None)
    assert_type(await schedules.delete_tenant("acme"), int)

    Every("30s")  # type: ignore[call-arg]
    Every("30s", nightly)  # type: ignore[arg-type]
    Every("30s", nightly.job(), tz="UTC")  # type: ignore[call-arg]
    Every("30s", nightly.job(), overlap="wait")  # type: ignore[arg-type]
    Cron(5, nightly.job())  # type: ignore[arg-type]
    Cron("@daily", nightly.job(), delivery="twice")  # type: ignore[arg-type]
    app.every("30s", "nightly")  # type: ignore[arg-type]
    app.cron(5, nightly.job())  # type: ignore[arg-type]
    assert_type(await schedules.put_many([Every("30s", nightly.job())]), Sequence[ScheduleInfo])
    await schedules.put("every minute")  # type: ignore[arg-type]
    await schedules.backfill("north")  # type: ignore[call-arg]


def stored(info: ScheduleInfo, tick: TickInfo, health: ScheduleHealth) -> None:
    assert_type(health.coverage, float | None)
    assert_type(health.slow, list[TickInfo])
    assert_type(info.next_slot, datetime | None)
    assert_type(info.last_job, UUID | None)
    assert_type(info.to_dict(), dict[str, Any])
    assert_type(tick.slot, datetime)
    assert_type(tick.waited, float | None)
    assert_type(tick.to_dict(), dict[str, Any])


# -- retention


async def janitor(janitor: Janitor, stop: SafetyStop) -> None:
    assert_type(app.janitor, Janitor)
    assert_type(app.keep("7d", states=["failed"], queue="mail"), None)
    assert_type(await janitor.keep("forever", states="completed", count=5, bytes=5), None)
    assert_type(await janitor.forget(task="send"), int)
    assert_type(await janitor.rules(), list[KeepInfo])
    assert_type(await janitor.preview(), JanitorRun)
    run = await janitor.run(force=True)
    assert_type(run.deleted, int)
    assert_type(run.steps, list[JanitorStep])
    assert_type(run.steps[0].cutoff, datetime | None)
    assert_type(await janitor.log(5), list[JanitorRun])
    assert_type(stop.plan, Any)
    assert_type(await janitor.set_budget(5), None)
    assert_type(await janitor.drop_budget(), None)
    assert_type(await janitor.usage(), UsageInfo)
    assert_type(await janitor.removed(None, datetime.now()), list[RemovedInfo])

    app.keep()  # type: ignore[call-arg]
    await janitor.keep("1d", count="5")  # type: ignore[arg-type]


async def vault(vault: Vault, file: VaultFile) -> None:
    assert_type(app.vault, Vault)
    assert_type(await vault.query("SELECT 1", [5], since=datetime.now()), list[dict[str, Any]])
    assert_type(await vault.files(), list[VaultFile])
    assert_type(await vault.replay("id = ?", ["x"], limit=5), Replayed)
    assert_type(await vault.append("metrics", [{"a": 1}]), str | None)
    assert_type(await vault.archive(), int)
    assert_type((await vault.compact()).made, int)
    assert_type((await vault.verify()).problems, list[str])
    assert_type(await vault.leave(), None)
    assert_type(file.bytes, int)

    await vault.query()  # type: ignore[call-arg]
    await vault.append(5, [])  # type: ignore[arg-type]


# -- policies


async def policies(policies: Policies) -> None:
    assert_type(app.policies, Policies)
    assert_type(await policies.set("mail", running=5, rate="100/s", ageing=None), PolicyInfo)
    assert_type(await policies.limit_store(1_000), PolicyInfo)
    assert_type(await policies.limit_store(None), PolicyInfo)
    assert_type(await policies.get("mail"), PolicyInfo)
    assert_type(await policies.list(), Sequence[PolicyInfo])
    assert_type(await policies.limit_tenant("mail", "acme", running=5, rate="1/s"), None)
    assert_type(await policies.tenants("mail", after="acme", limit=10), Sequence[TenantInfo])
    assert_type(await policies.pause("mail", tenant="acme", lasts=timedelta(hours=1)), None)
    assert_type(await policies.resume("mail", task="send"), None)

    await policies.set(5)  # type: ignore[arg-type]
    await policies.limit_store("many")  # type: ignore[arg-type]
    await policies.limit_tenant("mail")  # type: ignore[call-arg]
    await policies.limit_tenant("mail", "acme", running="5")  # type: ignore[arg-type]
    await policies.tenants()  # type: ignore[call-arg]
    await policies.pause("mail", lasts=b"1h")  # type: ignore[arg-type]


def limited(info: PolicyInfo, tenant: TenantInfo, full: QueueFull) -> None:
    assert_type(info.running, int | None)
    assert_type(info.rate, str | None)
    assert_type(info.task_rates, dict[str, str])
    assert_type(info.ageing, float | None)
    assert_type(info.tenant_batch, int | None)
    assert_type(info.fair, bool)
    assert_type(info.paused_tasks, dict[str, datetime | None])
    assert_type(info.to_dict(), dict[str, Any])
    assert_type(tenant.waiting, int)
    assert_type(tenant.limit, int | None)
    assert_type(tenant.paused_until, datetime | None)
    assert_type(tenant.workers, list[str])
    assert_type(tenant.to_dict(), dict[str, Any])
    assert_type(full.queue, str)
    assert_type(full.admitted, list[UUID])
    assert_type(full.refused, list[UUID])
    assert_type(full.full, list[str])


async def why(job_id: UUID) -> None:
    reason = await app.why(job_id)
    assert_type(reason, Why)
    assert_type(reason.code, WhyCode)
    assert_type(reason.sentence, str)
    await app.why(5)  # type: ignore[arg-type]
    assert_type(await app.wait(job_id, timeout="10s"), Any)
    await app.wait(5)  # type: ignore[arg-type]


# -- jobs and outcomes


async def job(job: Job[Image]) -> Outcome:
    assert_type(job.id, UUID)
    assert_type(job.payload, Image)
    assert_type(job.key, str | None)
    assert_type(job.group, str | None)
    assert_type(job.attempt, int)
    assert_type(job.failures, list[Failure])
    assert_type(job.worker, str)
    assert_type(job.run_at, datetime)
    assert_type(job.headers, dict[str, str])
    assert_type(job.lease, Lease)
    assert_type(job.lease.epoch, int)
    assert_type(job.cancel, CancelToken)
    assert_type(job.cancel.requested, bool)
    assert_type(job.cancel.wait(1.0), bool)
    patch = Patch(queue="other", sections=Sections(blob=b"", metadata=None))
    spawn = [NewJob(task="t", args={"a": 1}, delay="1s", key="k")]
    outcomes: list[Outcome] = [
        Done(1, result_ttl="1h", patch=patch, spawn=spawn),
        Retry("5s", "why"),
        Paused(),
        Again(timedelta(hours=1)),
        Fail("what", "why"),
        Cancelled("why"),
    ]
    NewJob()  # type: ignore[call-arg]
    NewJob("t")  # type: ignore[call-arg]
    NewJob(task="t", group="g", overflow="other", when_full="block")
    NewJob(task="t", group=5)  # type: ignore[arg-type]
    NewJob(task="t", run_at="tomorrow")  # type: ignore[arg-type]
    NewJob(task="t", bogus=1)  # type: ignore[call-arg]
    Patch(priority="high")  # type: ignore[arg-type]
    Sections(blob="text")  # type: ignore[arg-type]
    Again([1])  # type: ignore[arg-type]
    Done(spawn=["x"])  # type: ignore[list-item]
    return outcomes[0]


async def pulled(pull: Pull, job: PulledJob) -> None:
    assert_type(app.pull("mail", batch=10, want={"blob"}, lease="1m"), Pull)
    assert_type(connect().pull(["mail", "other"]), Pull)
    assert_type(await pull.take(5, wait=0), list[PulledJob])
    async for jobs in pull:
        assert_type(jobs, list[PulledJob])
    assert_type(job.section("blob"), bytes | None)
    assert_type(await job.load("blob"), bytes | None)
    job.set_state("completed")
    job.set_state(JobState.FAILED, error="why")
    job.set_vm_state(None)
    assert_type(job.release(), Flush)
    assert_type(await job.release(), JobState)
    assert_type(await job.heartbeat(), None)
    assert_type(pull.health().ok, bool)
    job.set_blob("text")  # type: ignore[arg-type]
    job.set_scheduled("tomorrow")  # type: ignore[arg-type]
    job.set_priority("high")  # type: ignore[arg-type]


@app.middleware
async def middleware(job: Job[Any], call: Next) -> Outcome:
    return await call(job)


chain: list[Middleware] = [middleware]


@app.batch
async def many(jobs: list[Job[int]]) -> None:
    raise Stop(Again("1m"))


async def bare_batches() -> None:
    assert_type(many, BatchTask[int])
    assert_type(many.options(priority=1), BatchTask[int])
    assert_type(many.job(1), NewJob)
    await many.enqueue("one")  # type: ignore[arg-type]


@app.observe
def observer(event: Event) -> None:
    assert_type(event.kind, EventKind)
    assert_type(event.job_id, UUID | None)
    assert_type(event.error, BaseException | None)
    assert_type(event.count, int)
    assert_type(event.alert, str)


@app.on_alert
def on_alert(change: AlertChange) -> None:
    assert_type(change.alert.subject, str)


def here() -> None:
    assert_type(current_job(), CurrentJob | None)
    if (job := current_job()) is not None:
        assert_type((job.id, job.task, job.attempt, job.key), tuple[UUID, str, int, str | None])
    JobFields()


def counting(counters: Counters) -> None:
    app.observe(counters)
    assert_type(counters.snapshot(), dict[str, Any])


def extending() -> None:
    def not_async(job: Job[Any], call: Next) -> Outcome:
        return Done()

    def wrong_event(event: int) -> None: ...

    app.middleware(not_async)  # type: ignore[arg-type]
    app.observe(wrong_event)  # type: ignore[type-var]


# -- the reliable queue

queue = Queue[Image, Thumb]("images", connect("memory://"), concurrency=5, result_ttl="1h")


@queue.after
async def after(job: Job[Any], ending: Ending) -> None:
    ending.result_ttl = "5m"


async def queues(image: Image) -> None:
    assert_type(await queue.enqueue("a", image), Queued | Duplicate | Completed[Thumb])
    assert_type(await queue.enqueue("a", image, group="g"), Queued | Duplicate | Completed[Thumb])
    assert_type(await queue.enqueue_and_wait("a", image, timeout="30s"), Thumb)
    assert_type(await queue.enqueue_and_wait("a", image, timeout=None), Thumb)
    assert_type(await queue.cancel("a"), str)
    assert_type(await queue.result("a"), Thumb | None)
    assert_type(await queue.update_result_ttl("a", "1h"), str)
    status = await queue.status("a")
    assert_type(status, JobStatus[Thumb] | None)
    if status is not None:
        assert_type(status.result, Thumb | None)
        assert_type(status.error, JobFailed | None)
        assert_type(status.created_at, datetime)
    async with queue as entered:
        assert_type(entered, Queue[Image, Thumb])
    match await queue.enqueue("a", image):
        case Completed(result):
            assert_type(result, Thumb)
        case Duplicate(state, attempts):
            assert_type(state, str)
            assert_type(attempts, int)
        case Queued():
            pass

    await queue.enqueue("a", "not an image")  # type: ignore[arg-type]
    await queue.enqueue(5, image)  # type: ignore[arg-type]
    await queue.enqueue("a")  # type: ignore[call-arg]
    await queue.enqueue("a", image, object())  # type: ignore[arg-type, call-arg]
    await queue.enqueue("a", image, bogus=1)  # type: ignore[call-arg]
    await queue.enqueue("a", image, max_attempts="3")  # type: ignore[arg-type]
    await queue.enqueue_and_wait("a", 5)  # type: ignore[arg-type]
    await queue.update_result_ttl("a")  # type: ignore[call-arg]
    Queue[Image, Thumb]()  # type: ignore[call-arg]
    Queue[Image, Thumb]("x", 5)  # type: ignore[arg-type]
    Queue[Image, Thumb]("x", concurrency="5")  # type: ignore[arg-type]
    Queue[Image]("x")  # type: ignore[misc]


def serdes() -> None:
    assert_type(JsonSerde[Image](Image).decode(b""), Image)
    assert_type(MsgpackSerde[int]().encode(1), bytes)
    assert_type(RawSerde().decode(b""), bytes)
    image_serde: Serde[Image] = JsonSerde[Image](Image)
    raw: Serde[bytes] = RawSerde()
    Queue[Image, bytes]("x", payload_serde=image_serde, result_serde=raw)
    Queue[Image, bytes]("x", payload_serde=raw)  # type: ignore[arg-type]
    RawSerde().encode("text")  # type: ignore[arg-type]


# -- without a loop


def sync(job_id: UUID) -> None:
    with SyncApp(app) as jobs:
        assert_type(jobs, SyncApp)
        assert_type(jobs.call(plain, 1), int)
        assert_type(jobs.call(configured.options(wait="5s"), 42, template="x"), str)
        assert_type(jobs.enqueue(bare, 1).result(), bytes)
        assert_type(jobs.enqueue(bare, 1).id, UUID)
        assert_type(jobs.enqueue(bare, 1).cancel(), JobState)
        assert_type(jobs.get(job_id), JobInfo)
        assert_type(jobs.wait(job_id, timeout=5), Any)
        assert_type(jobs.why(job_id), Why)
        assert_type(jobs.pause("mail", lasts="1h"), None)
        jobs.call(plain, "one")  # type: ignore[arg-type]
        jobs.enqueue(bare)  # type: ignore[call-arg]
        jobs.enqueue(lambda: None)  # type: ignore[arg-type]
    assert_type(bare.enqueue_sync(1), SyncHandle[bytes])
    assert_type(plain.call_sync(1), int)
    plain.call_sync("one")  # type: ignore[arg-type]
    bare.enqueue_sync()  # type: ignore[call-arg]
    images = SyncQueue(Queue[Image, Thumb]("images"))
    assert_type(images.enqueue_and_wait("a", Image()), Thumb)
    assert_type(images.result("a"), Thumb | None)
    images.enqueue("a", "not an image")  # type: ignore[arg-type]


# -- the client


async def client(client: Client) -> None:
    assert_type(await client.get("x"), JobInfo)
    assert_type((await client.get("x")).state, JobState)
    assert_type((await client.get("x")).group, str | None)
    assert_type(await client.why("x"), Why)
    assert_type(await client.pause("mail", lasts="1h"), None)
    assert_type((await client.get("x")).to_dict(), dict[str, Any])
    async with client as entered:
        assert_type(entered, Client)
    await client.get(5)  # type: ignore[arg-type]
    await client.insert(["x"])  # type: ignore[list-item]
    await client.wait()  # type: ignore[call-arg]


def errors(error: HeadraceError) -> None:
    assert_type(error.code, str)
    assert_type(error.to_dict(), dict[str, Any])


def generic(task: Task[[int], str]) -> None:
    task.job(1)
    task.job("x")  # type: ignore[arg-type]


# -- for operators


async def admin(client: Client) -> None:
    admin = Admin(client, redaction=Redaction.ALL)
    assert_type(await admin.jobs("queue:mail", None, 10), JobPage)
    assert_type((await admin.jobs()).jobs, list[JobInfo])
    assert_type(await admin.count("state:dead"), JobCount)
    details = await admin.job("x", reveal=True)
    assert_type(details, JobDetails)
    assert_type(details.timeline, Timeline)
    assert_type(details.sections, list[SectionView])
    assert_type(details.timeline.moments, list[Moment])
    assert_type(details.timeline.moments[0].kind, MomentKind)
    overview = await admin.overview()
    assert_type(overview, Overview)
    assert_type(overview.queues, list[QueueView])
    assert_type(overview.workers, list[WorkerView])
    assert_type(overview.kept, list[KeptView])
    assert_type(await admin.change(["x"], Action.REQUEUE, actor="ada"), list[Changed])
    assert_type(await admin.submit("state:dead", "move", "mail", expected=5), Operation)
    assert_type(await admin.operations(), list[Operation])
    assert_type(await admin.audit.entries(), list[AuditEntry])
    await admin.jobs(5)  # type: ignore[arg-type]


# -- in a transaction of one's own; what it makes of each connection is in bind.py


async def bound(blocking: Bound, awaited: AsyncBound, job: Job[None], lost: LeaseLost) -> None:
    assert_type(blocking.enqueue(configured, 1), Handle[str])
    assert_type(await awaited.enqueue(configured, 1, template="bye"), Handle[str])
    assert_type(blocking.complete(job), None)
    assert_type(lost.code, str)
    blocking.enqueue(configured, "one")  # type: ignore[call-overload]


# -- bundles


mail = Bundle(queue="mail", retry=never())


@mail.task(timeout="30s")
async def bundled(user_id: int) -> str:
    return str(user_id)


def bundles() -> None:
    assert_type(bundled.enqueue_sync(1), SyncHandle[str])
    app.include(mail, "shop.emails")
    App("memory://", include=[mail, "shop.*.tasks"])
    Bundle(quue="mail")  # type: ignore[call-arg]
    app.include(7)  # type: ignore[arg-type]


# -- start-up


class Pool:
    pass


@app.startup
async def pool() -> AsyncIterator[Pool]:
    yield Pool()


@app.startup(per="child")
def child() -> None: ...


@app.task
def pooled(n: int, pool: Pool = given) -> bytes:
    return b""


@app.plain_middleware
def plainly(job: CurrentJob, next: Callable[[], Outcome]) -> Outcome:
    return next()


def hooks(chain: list[PlainMiddleware]) -> None:
    chain.append(plainly)
    assert_type(app.use(Pool), Pool)
    assert_type(pooled.call_sync(1), bytes)
    pooled.call_sync("one")  # type: ignore[arg-type]
    app.startup(per="thread")  # type: ignore[call-overload]
    with app.using({Pool: Pool()}):
        pass


# -- what is tracked, crawled and kept hot


async def look(subjects: list[Subject]) -> Visited:
    return Visited(move={subject.id: "DAILY" for subject in subjects})


async def page(cursor: Cursor) -> str | None:
    return None


class Video(msgspec.Struct):
    id: str
    seen_at: datetime


async def hot(sink: RowSink) -> None:
    tracker = app.tracker("watch", look, {"HOURLY": "1h", "DAILY": "1d"}, results=sink)
    assert_type(tracker, Tracker)
    assert_type(await tracker.get("a"), Subject | None)
    assert_type(await tracker.counts(), dict[str, TierCount])
    crawler = app.crawler("search", page, every="1h")
    assert_type(crawler, Crawler)
    assert_type(await crawler.get("cats"), Cursor | None)
    table = app.table("videos", Video, keep="7d", age="seen_at", archive=app.vault)
    assert_type(table, Table[Video])
    assert_type(await table.stats(), TableStats)
    assert_type(await table.sweep(), TableSweep)


# -- PostgreSQL and Valkey together

windowed = Streams(pg="postgresql://db/jobs", valkey="redis://cache:6379")
assert_type(App(windowed), App)
assert_type(connect(windowed), Client)
Streams(pg="postgresql://db/jobs")  # type: ignore[call-arg]
