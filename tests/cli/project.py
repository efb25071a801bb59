"""The app that the command line is tried on."""

import asyncio
import time
from pathlib import Path

from headrace import App, Job, exponential, never

app = App("sqlite:///jobs.db")


@app.task
async def hello(who: str, n: int = 1) -> str:
    return f"hello {who}" * n


@app.task(queue="mail", retry=never())
async def boom(text: str = "boom") -> None:
    raise ValueError(text)


@app.task(retry=exponential(3, base="10ms"))
async def unsteady(job: Job[None]) -> int:
    if job.attempt < 1:
        raise ConnectionError("not yet")
    return job.attempt


@app.task(queue="late", retry=exponential(3, base="1h"))
async def late() -> None:
    raise ConnectionError("not yet")


@app.task
async def gate(path: str) -> str:
    """Runs until the file is there."""
    while not Path(path).exists():
        await asyncio.sleep(0.01)
    return "through"


@app.task
async def block() -> None:
    """Keeps the loop to itself, which nobody should."""
    time.sleep(60)  # noqa: ASYNC251


@app.batch(queue="mail", size=10)
async def letters(jobs: list[Job[int]]) -> None:
    return None
