"""A small project on Headrace: a pipeline, and what can happen on the way.

headrace dev app:app                                         a worker that reloads when you save this file
headrace enqueue fetch --app app:app --arg 'page="headrace"' a job for it
"""

import asyncio
import time
from collections import Counter
from pathlib import Path

from headrace import App, Done, Job, exponential

HERE = Path(__file__).parent

# A worker that dies is missed after its lease. The default is 30 s; here nobody wants to wait that long.
app = App(f"sqlite:///{HERE / 'demo.db'}", worker={"lease": "3s", "reap": "1s"})


# A pipeline: each step hands on to the next with `spawn`, stored together with its own outcome or not at all.


@app.task(queue="pages")
async def fetch(page: str, key: str | None = None) -> Done:
    """Get a page. Async functions run on the worker's loop."""
    await asyncio.sleep(0.3)  # the network, in a real project
    text = (HERE / "pages" / f"{page}.txt").read_text("utf-8")
    return Done(len(text), spawn=[parse.job(page, text, key)])


@app.task(queue="pages")
def parse(page: str, text: str, key: str | None = None) -> Done:
    """Count words. Plain functions run in a thread."""
    words = Counter(word.strip(".,;:").lower() for word in text.split() if len(word) > 3)
    return Done(len(words), spawn=[summarise.options(key=key).job(page, dict(words.most_common(3)))])


@app.task(queue="pages")
async def summarise(page: str, words: dict[str, int]) -> str:
    """Say what a page is about."""
    return f"{page} is about {', '.join(words)}"


# What goes wrong, and what becomes of it.


@app.task(retry=exponential(5, base="300ms", jitter=False))
async def unsteady(job: Job[None], service: str) -> str:
    """Fails twice, then succeeds. Each retry waits longer."""
    if job.attempt < 2:
        raise ConnectionError(f"{service} does not answer")
    return f"{service} answered at attempt {job.attempt + 1}"


@app.task(retry=exponential(2, base="100ms"))
async def broken(order: int) -> None:
    """Never succeeds. After its last attempt it is a dead letter, with its errors."""
    raise ValueError(f"order {order} has no address")


# Later, in both directions, and many at once.


@app.task
async def remind(what: str) -> str:
    """Enqueued with a delay."""
    return f"remember {what}"


@app.task
async def add(a: int, b: int) -> int:
    """Called like a function, run by a worker: `await add.call(2, 3)`."""
    return a + b


@app.batch(queue="mail", size=100)
async def send(letters: list[Job[str]]) -> list[Done]:
    """Takes as many jobs as there are, and answers each."""
    await asyncio.sleep(0.2)  # one call to the mail server for all of them
    return [Done(len(letters)) for _ in letters]


# What sets a job apart from a function call: it survives its worker, comes by the clock, and keeps to limits.


@app.task(queue="long")
async def film(title: str) -> str:
    """Takes a while. If its worker is killed meanwhile, another one does it."""
    await asyncio.sleep(2)
    return f"{title} is ready"


@app.task
async def chime() -> str:
    """Made by a schedule: one job for each slot, however many workers there are."""
    return "ding"


app.every("2s", chime, name="chime", jitter=0)


@app.task(queue="api")
async def request(number: int) -> tuple[float, float]:
    """A call to a service that takes only two at a time. Its queue has a limit, which holds over all workers."""
    began = time.time()
    await asyncio.sleep(0.3)
    return began, time.time()
