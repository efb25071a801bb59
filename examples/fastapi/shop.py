"""A small web service with background jobs: ``uvicorn shop:web``, and ``headrace worker shop:jobs`` beside it.

With ``WORKER=here`` in the environment, the web process runs the jobs itself.
"""

import asyncio
import os
from typing import Annotated
from uuid import UUID

from fastapi import FastAPI, HTTPException, Query

from headrace import App, JobInfo
from headrace.contrib.fastapi import Jobs, lifespan
from headrace.errors import JobError, JobNotFound, WaitTimeout

jobs = App()
web = FastAPI(lifespan=lifespan(jobs, worker=os.environ.get("WORKER") == "here"))


@jobs.task(queue="mail")
async def receipt(order_id: int) -> dict[str, str]:
    """Send a receipt, which takes a moment."""
    await asyncio.sleep(0.01)
    return {"to": f"customer-{order_id}@example.org"}


@web.post("/orders/{order_id}")
async def order(order_id: int) -> dict[str, UUID]:
    """Take an order. The answer says which job to ask for."""
    handle = await receipt.enqueue(order_id)
    return {"job": handle.id}


@web.post("/orders/{order_id}/blocking")
def order_in_a_thread(order_id: int) -> dict[str, UUID]:
    """The same in an endpoint that is a plain function, which runs in a thread."""
    return {"job": receipt.enqueue_sync(order_id).id}


@web.get("/jobs/{job_id}")
async def look(job_id: UUID, jobs: Jobs) -> JobInfo:
    """Everything that is known about a job."""
    try:
        return await jobs.get(job_id)
    except JobNotFound as error:
        raise HTTPException(404, str(error)) from error


@web.get("/jobs/{job_id}/result")
async def result(job_id: UUID, jobs: Jobs, wait: Annotated[float, Query(ge=0, le=30)] = 10) -> dict[str, object]:
    """Wait for the result: ``GET /jobs/ID/result?wait=10``."""
    try:
        return {"result": await jobs.wait(job_id, timeout=wait)}
    except JobNotFound as error:
        raise HTTPException(404, str(error)) from error
    except WaitTimeout as error:
        raise HTTPException(504, str(error)) from error
    except JobError as error:
        raise HTTPException(500, error.to_dict()) from error
