"""The example projects for FastAPI and Flask, and what they are made with."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from headrace import App, SyncApp
from headrace.contrib.starlette import jobs_of, lifespan
from headrace.contrib.worker_thread import WorkerThread
from headrace.errors import ConfigError, JobNotFound, RetriesExhausted, WaitTimeout
from headrace.worker.retry import never

EXAMPLES = Path(__file__).parents[2] / "examples"
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Imports the example of a framework, with a store of its own."""
    monkeypatch.setenv("HEADRACE_URL", f"sqlite:///{tmp_path}/shop.db")
    monkeypatch.setenv("WORKER", "here")

    def loaded(framework: str) -> ModuleType:
        name = f"{framework}_shop"
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / framework / "shop.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return loaded


def test_fastapi(load: Load) -> None:
    shop = load("fastapi")
    with TestClient(shop.web) as client:
        for path in ("/orders/7", "/orders/7/blocking"):
            job = client.post(path).json()["job"]
            assert client.get(f"/jobs/{job}/result?wait=30").json() == {"result": {"to": "customer-7@example.org"}}
            info = client.get(f"/jobs/{job}").json()
            assert (info["id"], info["state"], info["args"]) == (job, "completed", {"order_id": 7})
            assert info == SyncApp(shop.jobs).get(job).to_dict()
        assert client.get(f"/jobs/{uuid4()}").status_code == 404
        assert client.get(f"/jobs/{uuid4()}/result").status_code == 404
        schema = client.get("/openapi.json").json()["paths"]["/jobs/{job_id}"]["get"]["responses"]["200"]
        assert "enqueued_at" in str(schema)


def test_without_an_annotation_a_job_serialises_too() -> None:
    from fastapi import FastAPI

    jobs = App("memory://")

    @jobs.task(name="hello")
    def hello() -> None: ...

    web = FastAPI(lifespan=lifespan(jobs))

    @web.get("/")
    async def look():  # type: ignore[no-untyped-def]
        return await (await hello.enqueue()).info()

    with TestClient(web) as client:
        info = client.get("/").json()
    assert (info["task"], info["state"], info["failures"]) == ("hello", "available", [])


def test_flask(load: Load) -> None:
    shop = load("flask")
    client = shop.web.test_client()
    try:
        job = client.post("/orders/7").json["job"]
        sent = {"to": "customer-7@example.org", "from": "shop@example.org"}
        assert client.get(f"/jobs/{job}/result?wait=30").json == {"result": sent}
        assert client.get(f"/jobs/{job}").json["state"] == "completed"
        assert client.get(f"/jobs/{uuid4()}").status_code == 404
        assert client.get(f"/jobs/{uuid4()}/result").status_code == 404
    finally:
        shop.headrace.worker.stop()
        shop.headrace.jobs.close()


def test_flask_ends_a_context_where_its_task_ran() -> None:
    from flask import Flask, g

    from headrace.contrib.flask import Headrace

    site, app, ended = Flask("site"), App("memory://"), list[tuple[str, str]]()
    headrace = Headrace(None, app)
    headrace.init_app(site)

    @site.teardown_appcontext
    def note(error: BaseException | None) -> None:
        ended.append((g.task, threading.current_thread().name))

    @app.task(name="plain")
    def plain() -> None:
        g.task = "plain"

    @app.task(name="async")
    async def coroutine() -> None:
        g.task = "async"

    with headrace.jobs as jobs:
        jobs.enqueue(plain)
        jobs.drain()
        jobs.enqueue(coroutine)
        jobs.drain()
    assert [task for task, _ in ended] == ["plain", "async"]
    assert ended[0][1] == "headrace-thread"
    with pytest.raises(ConfigError, match="already"):
        headrace.init_app(site)


def test_one_lifespan_within_another() -> None:
    jobs, seen = App("memory://"), list[str]()

    @asynccontextmanager
    async def mine(web: Any) -> AsyncIterator[dict[str, Any]]:
        seen.append("open" if jobs.client.home is not None else "closed")
        yield {"mine": 7}
        seen.append("left")

    async def page(request: Request) -> JSONResponse:
        return JSONResponse([jobs_of(request) is jobs, request.state.mine])

    web = Starlette(routes=[Route("/", page)], lifespan=lifespan(jobs, inner=mine))
    with TestClient(web) as client:
        assert client.get("/").json() == [True, 7]
    assert seen == ["open", "left"]
    with pytest.raises(ConfigError, match=r"lifespan=lifespan\(jobs\)"):
        TestClient(web).get("/")


def test_a_worker_that_ends_is_told_and_the_web_app_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    jobs = App("memory://")  # without a task, no worker runs

    async def page(request: Request) -> JSONResponse:
        return JSONResponse("here")

    web = Starlette(routes=[Route("/", page)], lifespan=lifespan(jobs, worker=True))
    with TestClient(web) as client:
        assert client.get("/").json() == "here"
    assert any("the worker in this web process has ended" in record.message for record in caplog.records)


async def test_wait_by_id() -> None:
    app = App("memory://")

    @app.task
    async def double(n: int) -> dict[int, float]:
        return {n: 2.0 * n}

    @app.task(retry=never())
    async def fail() -> None:
        raise ValueError("no")

    async with app:
        good, bad, later = await double.enqueue(2), await fail.enqueue(), await double.options(delay="1h").enqueue(1)
        await app.drain()
        assert await app.wait(good.id) == {2: 4.0}
        assert await app.wait(str(good.id), timeout=0) == {2: 4.0}
        with pytest.raises(RetriesExhausted):
            await app.wait(bad.id)
        with pytest.raises(WaitTimeout):
            await app.wait(later.id, timeout=0)
        with pytest.raises(JobNotFound):
            await app.wait(uuid4())


@pytest.fixture
def worker() -> Iterator[tuple[App, WorkerThread]]:
    app = App("memory://")
    thread = WorkerThread(app)
    yield app, thread
    thread.stop()


def test_a_worker_in_a_thread(worker: tuple[App, WorkerThread]) -> None:
    app, thread = worker

    @app.task
    def where() -> str:
        return threading.current_thread().name

    thread.start()
    thread.start()
    jobs = SyncApp(app)
    assert jobs.wait(jobs.enqueue(where).id) == "headrace-thread"
    assert [one.name for one in threading.enumerate()].count("headrace-worker") == 1
    thread.stop()
    assert "headrace-worker" not in [one.name for one in threading.enumerate()]
    thread.start()
    assert jobs.call(where) == "headrace-thread"


def test_a_process_with_a_worker_in_a_thread_ends(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(
        "from headrace import App, SyncApp\nfrom headrace.contrib.worker_thread import WorkerThread\n"
        "app = App('sqlite:///small.db')\n"
        "@app.task(name='double')\ndef double(n: int) -> int:\n    return 2 * n\n"
        "WorkerThread(app).start()\nprint(SyncApp(app).call(double, 21))\n"
    )
    done = subprocess.run([sys.executable, "small.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")
