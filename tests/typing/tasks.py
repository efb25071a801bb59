"""A plain function that takes its job keeps the rest of its signature, as an async one does."""

from __future__ import annotations

from typing import assert_type

from headrace import App, Handle, Job

app = App("memory://")


@app.task
def bare(job: Job[None], a: int) -> float:
    return 1.0


@app.task(queue="x")
def configured(job: Job[None], a: int) -> float:
    return 1.0


async def tasks() -> None:
    assert_type(await bare.call(1), float)
    assert_type(await configured.enqueue(a=1), Handle[float])
    await bare.enqueue("one")  # type: ignore[arg-type]
    await configured.enqueue("one")  # type: ignore[arg-type]
