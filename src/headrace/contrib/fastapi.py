"""Headrace in FastAPI: the lifespan of ``headrace.contrib.starlette``, and a dependency.

from headrace.contrib.fastapi import Jobs, lifespan

web = FastAPI(lifespan=lifespan(jobs))

@web.get("/jobs/{job_id}")
async def look(job_id: UUID, jobs: Jobs) -> JobInfo:
    return await jobs.get(job_id)
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends

from headrace.api.app import App
from headrace.contrib.starlette import Lifespan, jobs_of, lifespan

Jobs = Annotated[App, Depends(jobs_of)]
"""A parameter of an endpoint, async or not, that gets the app."""

__all__ = ["Jobs", "Lifespan", "jobs_of", "lifespan"]
