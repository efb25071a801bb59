"""Options are typed wherever they are given: a typo or a value of another kind is seen before anything runs."""

from __future__ import annotations

from typing import assert_type

from headrace import App, Job, Queue, connect, exponential
from headrace.core.config import WorkerSettings

app = App("memory://")


@app.task(queue="mail", retry=exponential(5), executor="thread", priority=3, timeout="5s")
def send(to: str) -> None: ...


@app.batch(size=10, when_full="block")
async def index(jobs: list[Job[str]]) -> None: ...


def tasks() -> None:
    app.task(prioritty=1)  # type: ignore[call-overload]
    app.task(queue=3)  # type: ignore[call-overload]
    app.task(executor="fibre")  # type: ignore[call-overload]
    app.batch(sizes=3)  # type: ignore[call-overload]


async def jobs() -> None:
    await send.options(delay="10m", key="ada", tenant="acme", wait=None).enqueue("ada")
    send.options(delai="10m")  # type: ignore[call-arg]
    send.options(priority="high")  # type: ignore[arg-type]
    send.options(on_failed="explode")  # type: ignore[arg-type]
    send.options(key="ada", unique="until done")
    send.options(key="ada", unique=600)
    send.options(key="ada", unique=[])  # type: ignore[arg-type]
    assert_type((await send.options(key="ada", on_duplicate="replace").enqueue("ada")).replaced, bool)
    send.options(key="ada", on_duplicate="swap")  # type: ignore[arg-type]
    index.job("word", delay=5, group="words")
    index.job("word", wurd=1)  # type: ignore[call-arg]
    await app.enqueue_named("send", {"to": "ada"}, priority=1)
    await app.enqueue_named("send", {"to": "ada"}, prio=1)  # type: ignore[call-arg]


async def queues(queue: Queue[int, int]) -> None:
    await queue.enqueue("7", 7, delay="5s", max_attempts=2)
    await queue.enqueue("7", 7, delays="5s")  # type: ignore[call-arg]
    await queue.enqueue_and_wait("7", 7, timeout=None, tenant="acme")


async def schedules() -> None:
    app.every("5m", send.job("ada"), name="ada", misfire="skip")
    app.every("5m", send.job("ada"), misfires="skip")  # type: ignore[call-arg]
    app.cron("0 6 * * *", send.job("ada"), tz="Europe/Madrid", overlap="queue")
    app.cron("0 6 * * *", send.job("ada"), overlap="pile up")  # type: ignore[arg-type]
    await app.schedules.update("ada", every="10m", dynamic_interval=False)
    await app.schedules.update("ada", ever="10m")  # type: ignore[call-arg]


async def policies() -> None:
    await app.policies.set("mail", rate="100/s", depth=None)
    await app.policies.set("mail", rates="100/s")  # type: ignore[call-arg]


def settings() -> None:
    App("memory://", patience="5s", worker={"concurrency": 4, "lease": "1m"}, retention={"failed": {"age": "30d"}})
    App("memory://", worker=WorkerSettings(concurrency=4))
    App("memory://", patients="5s")  # type: ignore[call-arg]
    App("memory://", worker={"concurency": 4})  # type: ignore[arg-type]
    App("memory://", worker={"concurrency": "four"})  # type: ignore[arg-type]
    App("memory://", retention={"failed": {"years": 1}})  # type: ignore[arg-type]
    connect("memory://", result_ttl="10m")
    connect("memory://", results_ttl="10m")  # type: ignore[call-arg]
