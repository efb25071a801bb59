"""Headrace in a Django project: set-up, transactions, workers, and connections that are lost."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.contrib.django.configuration import database_url
from tests.contrib.conftest import Project
from tests.postgres import server

DEADLINE = 300
SERVICES = "[plain]\nhost=db\n[sealed]\nhost=db\nsslmode=require\n"
CONTRACT = Path(__file__).with_name("contract.py")
HELPERS = Path(__file__).with_name("helpers.py")
INTERRUPTED = Path(__file__).with_name("interrupted.py")


@pytest.mark.parametrize("by_environment", [False, True])
def test_a_database_of_a_service_is_reached_as_django_reaches_it(
    by_environment: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "services").write_text(SERVICES)
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    monkeypatch.delenv("PGSSLMODE", raising=False)
    for service, prefers in (("plain", True), ("sealed", False)):
        options = {} if by_environment else {"service": service}
        monkeypatch.setenv("PGSERVICE", service if by_environment else "")
        said = database_url({"NAME": "shop", "OPTIONS": options}, {})
        assert ("sslmode=prefer" in said, "sslmode" in said) == (prefers, prefers)


@pytest.fixture
def worker(project: Project) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts ``manage.py headrace worker``."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        started.append(project.start("headrace", "worker", *arguments))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def until(project: Project, query: str, wanted: Any) -> None:
    """Wait until a query gives what is wanted."""
    deadline = time.monotonic() + DEADLINE
    with psycopg.connect(project.url(), autocommit=True) as connection:
        while (found := connection.execute(query).fetchall()) != wanted:  # type: ignore[arg-type]
            log = project.directory / "log"
            assert time.monotonic() < deadline, f"{found}; the worker said: {log.read_text()[-4_000:]}"
            connection.execute("SELECT pg_sleep(0.05)")


def lose_connections(project: Project) -> int:
    """End every connection to the project's database, as a restart or a failover does; how many there were."""
    with psycopg.connect(server().url(), autocommit=True) as connection:
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
        return len(connection.execute(query, [project.database]).fetchall())


def test_migrate_makes_the_schema_of_the_jobs(project: Project) -> None:
    assert "System check identified no issues" in project.manage("check")
    assert "  Applying headrace.0001" in project.manage("migrate")
    assert "Applying headrace" not in project.manage("migrate")
    assert "pending" not in project.manage("headrace", "migrate", "status")
    assert "No changes detected" in project.manage("makemigrations", "--check")


def test_the_projects_own_tests_and_the_contract_of_djangos_tasks(project: Project) -> None:
    shutil.copy(CONTRACT, project.directory / "orders")
    told = project.manage("test", "orders.tests", "orders.contract")
    assert "Ran 40 tests" in told
    assert "\nOK\n" in told


def test_the_helpers_for_tests(project: Project) -> None:
    shutil.copy(HELPERS, project.directory / "orders")
    told = project.manage("test", "orders.helpers")
    assert "Ran 16 tests" in told
    assert "\nOK\n" in told


ORDERS = """
from django.db import transaction
from headrace.contrib.django import enqueue
from orders.models import Order
from orders.tasks import count, receipt
for n in range({count}):
    try:
        with transaction.atomic():
            enqueue(receipt, Order.objects.create(email=f"{{n}}@example.org").pk)
            if n % 10 == 9:
                raise KeyError
    except KeyError:
        pass
    enqueue(count)
"""


@pytest.mark.parametrize(
    "kept", ["", 'DATABASES["default"] |= {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}'], ids=["closed", "kept"]
)
def test_no_task_fails_for_a_lost_connection_after_the_first_retry(
    project: Project, worker: Callable[..., subprocess.Popen[bytes]], kept: str
) -> None:
    project.add_settings(kept)
    project.manage("migrate", "-v", "0")
    project.manage("shell", "-c", ORDERS.format(count=200))
    running = worker("--concurrency", "4")
    until(project, "SELECT count(*) > 30 FROM orders_order WHERE receipts > 0", [(True,)])
    assert lose_connections(project) >= 4
    done = "SELECT DISTINCT state FROM headrace.jobs_v1"
    until(project, done, [("completed",)])
    lose_connections(project)
    project.manage("shell", "-c", ORDERS.format(count=20))
    until(project, done, [("completed",)])
    running.send_signal(signal.SIGTERM)
    assert running.wait(DEADLINE) == 0
    with psycopg.connect(project.url()) as connection:
        [[most, jobs]] = connection.execute("SELECT max(attempt), count(*) FROM headrace.jobs_v1").fetchall()
        [[orders, receipts]] = connection.execute("SELECT count(*), sum(receipts) FROM orders_order").fetchall()
    assert most <= 1, "one attempt may find its connection gone, and the next one has another"
    assert (jobs, orders) == (180 + 200 + 18 + 20, 198), "what was rolled back has no job"
    assert receipts >= orders


@pytest.mark.parametrize("name", ["awaits", "blocks"])
def test_a_task_that_a_stop_interrupts_has_not_finished(
    project: Project, worker: Callable[..., subprocess.Popen[bytes]], name: str
) -> None:
    orders = project.directory / "orders"
    shutil.copy(INTERRUPTED, orders)
    project.add_settings("HEADRACE = {'TASKS_MODULE': 'interrupted', 'SETTINGS': {'worker': {'grace': '100ms'}}}")
    project.manage("migrate", "-v", "0")
    project.manage("shell", "-c", f"from orders.interrupted import {name}; {name}.enqueue()")
    running = worker()
    until_told(project, "started\n")
    running.send_signal(signal.SIGTERM)
    assert running.wait(DEADLINE) == 0
    (orders / "go").touch()
    until(project, "SELECT state FROM headrace.jobs_v1", [("available",)])
    project.manage("headrace", "worker", "--burst")
    assert (orders / "told").read_text() == "started\nstarted\nfinished SUCCESSFUL\n"


def until_told(project: Project, wanted: str) -> None:
    """Wait until the tasks in ``interrupted`` have told so much."""
    told, deadline = project.directory / "orders" / "told", time.monotonic() + DEADLINE
    while not told.exists() or told.read_text() != wanted:
        assert time.monotonic() < deadline, (project.directory / "log").read_text()[-4_000:]
        time.sleep(0.02)


def test_several_processes(project: Project, worker: Callable[..., subprocess.Popen[bytes]]) -> None:
    """Child processes find the project, wherever ``manage.py`` was called from."""
    project.manage("migrate", "-v", "0")
    project.manage("shell", "-c", ORDERS.format(count=20))
    elsewhere = subprocess.run(
        [sys.executable, project.directory / "manage.py", "headrace", "worker", "--processes", "2", "--burst"],
        cwd=project.directory.parent,
        env=project.environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert elsewhere.returncode == 0, elsewhere.stdout + elsewhere.stderr
    until(project, "SELECT DISTINCT state FROM headrace.jobs_v1", [("completed",)])


def test_the_command_line_for_the_project(project: Project) -> None:
    project.manage("migrate", "-v", "0")
    stored = json.loads(project.manage("headrace", "enqueue", "orders.tasks.count", "--json").split("\nqueued")[0])
    shown = project.manage("headrace", "job", "show", stored["id"], "--settings", "shop.settings")
    assert "orders.tasks.count" in shown
    assert "mail" in project.manage("headrace", "queue", "list")
    assert "no such command" in project.manage("headrace", "wroker", code=2).lower()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("HEADRACE = {'DATABSE': 'default'}", "unknown setting 'DATABSE' (did you mean 'DATABASE'?)"),
        ("HEADRACE = {'DATABASE': 'other'}", "DATABASE: no 'other' in DATABASES; there are: default"),
        ("HEADRACE = {'URL': 'sqlite:///a.db', 'DATABASE': 'default'}", "expected URL or DATABASE, got both"),
        ("HEADRACE = 'postgresql://'", "expected a dict"),
        ("HEADRACE = {'SETTINGS': {'worker': {'concurency': 1}}}", "concurency"),
        (
            "DATABASES['default'] = {'ENGINE': 'django.db.backends.sqlite3', 'NAME': 'a'}\n"
            "HEADRACE = {'DATABASE': 'default'}",
            "expected an alias of a PostgreSQL database, got 'default'",
        ),
    ],
)
def test_wrong_settings_are_told(scaffold: Project, setting: str, said: str) -> None:
    scaffold.add_settings(setting)
    assert said in scaffold.manage("check", code=1)


OTHER_STORE = """
from django.db import transaction
from headrace.contrib.django import app, enqueue, jobs
from headrace.seam.records import Selector
from orders.models import Order
from orders.tasks import receipt
with transaction.atomic():
    first = enqueue(receipt, Order.objects.create(email="a@example.org").pk)
    assert jobs().stats().queues == [], "not before the commit"
try:
    with transaction.atomic():
        enqueue(receipt, Order.objects.create(email="b@example.org").pk)
        raise KeyError
except KeyError:
    pass
assert app.client.settings.url.startswith("sqlite:"), app.client.settings.url
assert [job.id for job in jobs().list_jobs(Selector())] == [first]
"""


def test_on_another_store_jobs_follow_the_commit(scaffold: Project) -> None:
    project = scaffold
    project.add_settings(
        "DATABASES['default'] = {'ENGINE': 'django.db.backends.sqlite3', 'NAME': BASE_DIR / 'db.sqlite3'}\n"
        "HEADRACE = {'URL': f'sqlite:///{BASE_DIR}/jobs.db'}"
    )
    assert "Applying headrace" not in project.manage("migrate")
    project.manage("shell", "-c", OTHER_STORE)
    project.manage("headrace", "worker", "--burst")
    assert "receipt" in project.manage("headrace", "job", "list", "--state", "completed")


def test_an_app_of_your_own(scaffold: Project) -> None:
    (scaffold.directory / "shop" / "jobs.py").write_text(
        "from headrace import App\napp = App('sqlite:///mine.db')\n"
        "@app.task(name='mine')\ndef mine() -> int:\n    return 7\n"
    )
    scaffold.add_settings("HEADRACE = {'APP': 'shop.jobs:app'}")
    assert "7" in scaffold.manage("shell", "-c", "from headrace.contrib.django import app; print(app.tasks['mine']())")


OWN_APP = """
from django.conf import settings
from headrace import App, exponential
from headrace.contrib.django.configuration import database_url

app = App(database_url(settings.DATABASES["default"], {{"schema": "mine"}}), worker={{"concurrency": 2}})


@app.task(retry=exponential(3, base="100ms"))
async def pids() -> int:
    from django.db import connection
    from asgiref.sync import sync_to_async

    def ask():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            return cursor.fetchone()[0]

    return await sync_to_async(ask)()
"""
IN_A_TRANSACTION = """
from django.db import connection, transaction
from headrace.contrib.django import enqueue, jobs
from headrace.seam.records import Selector
from shop.jobs import pids
with transaction.atomic():
    kept = enqueue(pids)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM mine.jobs_v1")
        assert cursor.fetchone() == (1,), "it is part of the transaction"
    assert jobs().list_jobs(Selector()) == []
"""
FOLLOWS = """
from django.test import TransactionTestCase
from headrace.contrib.django import app, jobs
from headrace.contrib.django.test import StoreMixin
from shop.jobs import pids

class Own(StoreMixin, TransactionTestCase):
    def test_it_follows(self):
        self.assertIn("/test_", app.client.settings.url)
        self.assertIn("schema=mine", app.client.settings.url)
        self.assertEqual(app.client.settings.worker.concurrency, 2)
        jobs().enqueue(pids)
        jobs().drain()
"""


def test_an_app_of_your_own_in_a_database_of_django(
    project: Project, worker: Callable[..., subprocess.Popen[bytes]]
) -> None:
    (project.directory / "shop" / "jobs.py").write_text(OWN_APP.format())
    (project.directory / "shop" / "tests.py").write_text(FOLLOWS)
    project.add_settings("HEADRACE = {'APP': 'shop.jobs:app', 'DATABASE': 'default'}\nINSTALLED_APPS.remove('orders')")
    project.add_settings("ROOT_URLCONF = 'shop.urls'")
    project.manage("migrate", "-v", "0")
    assert "\nOK\n" in project.manage("test", "shop.tests")
    project.manage("shell", "-c", IN_A_TRANSACTION)
    worker()
    done = "SELECT count(*) FROM mine.jobs_v1 WHERE state = 'completed' AND attempt = 0"
    until(project, done, [(1,)])
    project.manage("shell", "-c", "from shop.jobs import pids; pids.enqueue_sync()")
    until(project, done, [(2,)])


def test_an_app_of_your_own_elsewhere(scaffold: Project) -> None:
    (scaffold.directory / "shop" / "jobs.py").write_text("from headrace import App\napp = App('sqlite:///mine.db')\n")
    (scaffold.directory / "shop" / "tests.py").write_text(
        "from django.test import TransactionTestCase\n"
        "from headrace.contrib.django.test import StoreMixin\n"
        "class Own(StoreMixin, TransactionTestCase):\n"
        "    def test_nothing(self): pass\n"
    )
    scaffold.add_settings("HEADRACE = {'APP': 'shop.jobs:app'}\nINSTALLED_APPS.remove('orders')")
    scaffold.add_settings("ROOT_URLCONF = 'shop.urls'")
    assert "StoreMixin deletes all jobs" in scaffold.manage("test", "shop.tests", code=1)
    scaffold.add_settings("HEADRACE['DATABASE'] = 'default'")
    assert "expected that APP keeps its jobs in 'default'" in scaffold.manage("check", code=1)


def test_nothing_of_headrace_needs_a_framework() -> None:
    code = (
        "import sys, headrace.cli.worker_process, headrace.cli.worker, headrace\n"
        "for name in headrace.__all__: getattr(headrace, name)\n"
        "print([name for name in ('django', 'fastapi', 'starlette', 'flask') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
