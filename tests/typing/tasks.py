"""Tasks as their callers see them: without the job, and without the outcomes."""

from __future__ import annotations

from typing import Any, assert_type

from headrace import Again, App, Done, Fail, Handle, Job, Outcome, Paused, Retry

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


# -- tasks that return outcomes: callers get the result


@app.task
def snoozes(n: int) -> str | Again:
    return "" if n else Again("1m")


@app.task(queue="mail")
async def ends(n: int) -> Done[int] | Retry | Fail:
    return Done(n)


@app.task
async def mixes(n: int) -> bytes | Done[bytes] | Paused:
    return b""


@app.task
def gives_up(n: int) -> Retry | None:
    return None


@app.task
def anything(n: int) -> Outcome:
    return Done(1)


@app.task
def unsaid(n: int) -> Done:
    return Done(1)


async def outcomes() -> None:
    assert_type(await snoozes.call(1), str)
    assert_type(await (await snoozes.enqueue(1)).result(), str)
    assert_type(snoozes.call_sync(1), str)
    assert_type(await ends.call(1), int)
    assert_type(await mixes.call(1), bytes)
    assert_type(await gives_up.call(1), None)
    assert_type(await anything.call(1), Any)
    assert_type(await unsaid.call(1), Any)
    await ends.call("1")  # type: ignore[arg-type]
