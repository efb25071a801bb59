"""The pytest plugin: installed with Headrace, found by pytest by itself.

::

    async def test_signup_sends_a_welcome(headrace_jobs):
        with headrace_jobs(app) as jobs:
            await signup("ada@example.org")
            jobs.assert_enqueued(welcome, args={"user_id": 1})
            await jobs.drain()
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headrace.testing.jobs import AppJobs


@pytest.fixture
def headrace_jobs() -> Callable[..., AbstractContextManager[AppJobs]]:
    """``headrace_jobs(app)`` puts an app on a fresh memory store with a clock that stands still."""

    def use(app: Any, **options: Any) -> AbstractContextManager[AppJobs]:
        from headrace.testing.jobs import in_memory

        return in_memory(app, **options)

    return use
