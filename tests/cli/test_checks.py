"""``health``, ``doctor`` and ``bench``."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace import App, Every, NewJob, connect
from headrace.cli import disk_checks
from headrace.cli.health import Criteria, judge
from headrace.cli.loading import load_target
from headrace.seam.records import Beat, Claim, QueueStats, Stats, WorkerStats
from tests.cli.conftest import Run
from tests.postgres import server

RunJson = Callable[..., Any]
URL = ("--url", "sqlite:///jobs.db")
SECOND = 1_000_000
NOW = 1_000 * SECOND


def worker(name: str = "w", *queues: str, seen: int = NOW) -> WorkerStats:
    return WorkerStats(name, queues or ("default",), 10, 0, 0, seen)


def healthy(*queues: str, workers: int = 1, max_age: int | None = None) -> Criteria:
    return Criteria(queues, workers, 30 * SECOND, max_age)


def problems(stats: Stats, criteria: Criteria) -> list[str]:
    return judge("sqlite:///x", stats, criteria, NOW).problems


def stats(*workers: WorkerStats, queues: tuple[QueueStats, ...] = ()) -> Stats:
    return Stats(list(queues), list(workers), [])


DUE = QueueStats("default", available=5, oldest_due_age=90 * SECOND)


def test_what_is_healthy() -> None:
    assert problems(stats(worker()), healthy()) == []
    assert problems(stats(worker(), queues=(DUE,)), healthy()) == []
    assert problems(stats(), healthy(workers=0)) == []
    paused = QueueStats("default", paused=True, available=5, oldest_due_age=90 * SECOND)
    assert problems(stats(queues=(paused,)), healthy(workers=0)) == []


def test_what_is_not() -> None:
    assert problems(stats(), healthy()) == ["expected at least 1 worker alive, found 0"]
    silent = worker(seen=NOW - 31 * SECOND)
    assert problems(stats(silent), healthy()) == ["expected at least 1 worker alive, found 0, and 1 silent"]
    assert "1m30s" in problems(stats(worker(), queues=(DUE,)), healthy(max_age=60 * SECOND))[0]
    [problem] = problems(stats(worker("w", "other"), queues=(DUE,)), healthy())
    assert problem == "queue default has due jobs and no worker; the oldest has waited 1m30s"


def test_only_the_queues_that_are_asked_for() -> None:
    assert problems(stats(worker("w", "other"), queues=(DUE,)), healthy("other")) == []
    assert problems(stats(worker("w", "other"), queues=(DUE,)), healthy("default", workers=0)) != []


def prepare(*, beat: bool = False, claim: int = 0) -> None:
    """A store with a waiting job, and maybe a worker that holds it."""

    async def main() -> None:
        async with connect(URL[1]) as client:
            await client.insert([NewJob(task="jobs.gone", args={"token": "s3cr3t"})])
            backend = await client.backend()
            if beat:
                await backend.renew(Beat("secret-holder", "worker-1", ("default",), 30 * SECOND, slots=4))
            if claim:
                await backend.claim(Claim("secret-holder", ("default",), 1, claim))

    asyncio.run(main())


def test_health(run: Run, run_json: RunJson, project: Path) -> None:
    prepare()
    report = run_json("health", *URL, code=1)
    assert report.keys() == {"ok", "store", "reachable", "problems", "workers", "queues"}
    assert report["ok"] is False
    assert "fail  expected at least 1 worker alive, found 0" in run("health", *URL, code=1).stdout
    prepare(beat=True)
    report = run_json("health", *URL)
    assert (report["ok"], report["problems"]) == (True, [])
    [listed] = report["workers"]
    assert listed.keys() == {"worker", "alive", "seen_seconds_ago", "slots", "busy", "queues"}
    [queue] = report["queues"]
    [listed] = run_json("queue", "list", *URL)["queues"]
    assert queue.keys() == listed.keys(), "the same words everywhere"
    assert (queue["due"], queue["scheduled"], queue["workers"]) == (2, 0, 1)
    run("health", *URL, "--max-age", "1us", code=1)
    run("health", *URL, "--workers", "2", code=1)


def beat(*names: str, slots: int = 4) -> None:
    async def main() -> None:
        async with connect(URL[1]) as client:
            backend = await client.backend()
            for name in names:
                await backend.renew(Beat(name, name, ("default",), 30 * SECOND, slots=slots))

    asyncio.run(main())


def test_health_of_one_worker(run: Run, run_json: RunJson, project: Path) -> None:
    """A probe: neither jobs that nobody listens for nor the other workers count."""
    prepare()
    beat("web-2")
    asyncio.run(enqueue_elsewhere())
    assert "queue elsewhere has due jobs and no worker" in run("health", *URL, code=1).stdout
    report = run_json("health", *URL, "--worker", "web-2")
    assert ([one["worker"] for one in report["workers"]], report["queues"]) == (["web-2"], [])
    told = run("health", *URL, "--worker", "web-1", code=1).stdout
    assert "fail  expected at least 1 worker called web-1 alive, found 0" in told
    beat("web-1")
    run("health", *URL, "--worker", "web-1")
    run("health", *URL, "--worker", "web-1", "--queue", "default")
    run("health", *URL, "--worker", "web-1", "--queue", "elsewhere", code=1)
    run("health", *URL, "--worker", "web-1", "--here", code=2)
    run("health", *URL, "--worker", "web-1", "--max-age", "1s", code=2)


def test_a_worker_without_slots_is_not_alive(run: Run, run_json: RunJson, project: Path) -> None:
    """It beats, and nothing runs."""
    prepare()
    beat("web-1", slots=0)
    told = run("health", *URL, code=1).stdout
    assert "warn  worker web-1: seen 0 s ago, 0 of 0 slots busy" in told
    assert "fail  expected at least 1 worker alive, found 0, and 1 without slots" in told
    assert "fail  queue default has due jobs and no worker" in told
    assert [queue["workers"] for queue in run_json("queue", "list", *URL)["queues"]] == [0]
    assert "no worker listens" in run("doctor", *URL).stdout
    report = run_json("health", *URL, "--worker", "web-1", code=1)
    assert [one["alive"] for one in report["workers"]] == [False]
    beat("web-2")
    run("health", *URL)


async def enqueue_elsewhere() -> None:
    async with connect(URL[1]) as client:
        await client.insert([NewJob(task="jobs.gone", queue="elsewhere")])


@pytest.mark.parametrize(
    ("setting", "alive", "other"),
    [
        ("host-pid", "pod-7-123", "pod-7"),
        ("host-pid", "pod-7-123", "pod-77-123"),
        ("hostname", "pod-7", "pod-7-123"),
        ("pod", "pod-7", "pod-8"),
        ("mine", "mine", "mine-a"),
        ("mine", "mine-2", "yours-2"),
    ],
)
def test_health_of_the_workers_here(
    run: Run, monkeypatch: pytest.MonkeyPatch, setting: str, alive: str, other: str
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "pod-7")
    monkeypatch.setenv("HOSTNAME", "pod-7")
    here = ("health", *URL, "--here")
    env = {"HEADRACE_WORKER__NAME": setting}
    beat(other)
    assert "expected at least 1 worker of this machine (named " in run(*here, env=env, code=1).stdout
    beat(alive)
    assert f"worker {alive}: seen 0 s ago" in run(*here, env=env).stdout
    run(*here, "--workers", "2", env=env, code=1)


def test_a_wrong_sslmode_is_a_wrong_setting_and_no_store_that_is_away(run: Run) -> None:
    told = run("health", "--url", "postgresql://127.0.0.1/x?sslmode=foo", code=2).stderr
    assert "sslmode: expected one of disable, allow, prefer" in told
    assert "got 'foo'" in told


def test_random_names_are_of_no_machine(run: Run) -> None:
    beat("w")
    told = run("health", *URL, "--here", env={"HEADRACE_WORKER__NAME": "random"}, code=2).stderr
    assert "run: set HEADRACE_WORKER__NAME=pod for the worker and for this command" in told


def test_a_liveness_probe_outlasts_the_store(run: Run, run_json: RunJson) -> None:
    report = run_json("health", "--url", "sqlite:///nowhere.db", "--here", "--away-ok")
    assert run("health", "--url", "sqlite:///nowhere.db", "--away-ok").stdout.startswith("warn  ")
    assert (report["ok"], report["reachable"]) == (False, False)
    beat("w")
    run("health", *URL, "--worker", "v", "--away-ok", code=1)


@pytest.mark.parametrize("url", ["sqlite:///nowhere.db", "sqlite:///no/such/dir/jobs.db"])
def test_health_of_a_store_that_is_away(run_json: RunJson, url: str) -> None:
    report = run_json("health", "--url", url, code=75)
    assert (report["ok"], report["reachable"]) == (False, False)


def test_health_of_a_store_that_was_never_asked(run: Run, run_json: RunJson) -> None:
    """Its URL is refused before anything is sent: it does not answer, and it is not away either."""
    url = "rediss://127.0.0.1?ca=/nonexistent.pem"
    report = run_json("health", "--url", url, "--away-ok", code=1)
    assert (report["ok"], report["reachable"]) == (False, False)
    assert "answers" not in run("health", "--url", url, code=1).stdout


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_health_of_a_store_that_hangs(run_json: RunJson, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.setattr("headrace.cli.health._LIMIT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"
        report = run_json("health", "--url", url, "--here", "--away-ok")
        run_json("health", "--url", url, "--here", code=75)
    assert (report["ok"], report["reachable"]) == (False, False)
    assert "expected an answer within 0.5 s, got none" in report["problems"][0]


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_doctor_of_a_store_that_hangs(run_json: RunJson, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.setenv("HEADRACE_PATIENCE", "500ms")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        report = run_json("doctor", "--url", f"{scheme}://127.0.0.1:{silent.getsockname()[1]}", code=1)
    [[level, what]] = findings(report, "store")
    assert level == "fail"
    assert "expected an answer from the store within 0.5 s, got none in 1." in what


def findings(report: dict[str, Any], check: str) -> list[tuple[str, str]]:
    return [(found["level"], found["what"]) for found in report["findings"] if found["check"] == check]


def test_doctor(run: Run, run_json: RunJson) -> None:
    prepare(beat=True, claim=30 * SECOND)
    report = run_json("doctor", *URL)
    assert report["ok"]
    for check in ("versions", "settings", "store", "durability", "capabilities", "sqlite", "journal", "disk", "leases"):
        assert [level for level, _ in findings(report, check)] in (["ok"], ["ok", "warn"], ["warn", "ok"]), check
    assert findings(report, "journal") == [("ok", "mode wal: readers and the writer do not wait for each other")]
    assert report["settings"]["worker.lease"] == "30s"
    text = run("doctor", *URL).stdout
    assert "ok    leases: none has expired" in text
    assert "secret-holder" not in text
    assert "s3cr3t" not in text


def test_doctor_tells_what_survives_on_postgresql(run_json: RunJson) -> None:
    report = run_json("doctor", "--url", server().url())
    [(level, what)] = findings(report, "commits")
    assert (level, what.partition(":")[0]) == ("warn", "fsync = off")  # as the server of the tests is set up


def test_doctor_reminds_of_what_is_read_without_a_seal(run: Run, run_json: RunJson) -> None:
    key = bytes(range(32)).hex()
    sealed = {"JOB_KEYS": f"a:{key}", "HEADRACE_PAYLOADS__SEALING__KEYS": "env:JOB_KEYS"}
    both = sealed | {"HEADRACE_PAYLOADS__SEALING__READ_UNSEALED": "true"}
    assert findings(run_json("doctor", *URL), "sealing") == []
    assert findings(run_json("doctor", *URL, env=sealed), "sealing") == [("ok", "payloads and results are sealed")]
    [(level, what)] = findings(run_json("doctor", *URL, env=both), "sealing")
    assert (level, "those that are not are read too" in what) == ("warn", True)
    assert key not in run("doctor", *URL, env=both).output


def test_doctor_finds_stale_leases(run_json: RunJson) -> None:
    prepare(beat=True, claim=1)
    [(level, what)] = findings(run_json("doctor", *URL), "leases")
    assert (level, what) == ("warn", "1 job whose worker has died")


def test_doctor_finds_jobs_that_no_task_is_there_for(run: Run, run_json: RunJson) -> None:
    prepare()
    report = run_json("doctor", "--app", "jobs", code=1)
    assert ("fail", "jobs wait for tasks that the app does not have: jobs.gone") in findings(report, "tasks")


def test_doctor_goes_as_far_as_it_can(run: Run, run_json: RunJson, project: Path) -> None:
    assert "no store at sqlite:///headrace.db yet" in run("doctor").stdout
    assert not (project / "headrace.db").exists()
    (project / "notes.db").write_text("no database at all, only text; " * 200)
    assert run_json("doctor", "--url", "sqlite:///notes.db", code=1)["ok"] is False
    assert "mkdir -p" in run("doctor", "--url", "sqlite:///no/such/jobs.db", code=1).stdout
    assert "there is no module" in run("doctor", "--app", "nowhere", code=1).stdout
    error = run("doctor", "--url", "mysql://me:hunter2@db/x", code=1).output
    assert "hunter2" not in error


@pytest.mark.parametrize(
    ("env", "toml", "words"),
    [
        ({"HEADRACE_WORKER__LEASE": "soon"}, "", ["worker.lease", "'soon'", "the variable HEADRACE_WORKER__LEASE"]),
        (
            {"HEADRACE_WROKER__LEASE": "1s"},
            "",
            ["did you mean HEADRACE_WORKER__LEASE?", "the variable HEADRACE_WROKER__LEASE"],
        ),
        ({"HEADRACE_URL": "mysql://x"}, "url = 'memory://'", ["mysql://x", "the variable HEADRACE_URL"]),
        ({"HEADRACE_PATIENCE": "3s"}, "[worker]\nlease = 'soon'", ["worker.lease", "'soon'", "headrace.toml"]),
        ({}, "url = 'mysql://x'", ["mysql://x", "headrace.toml"]),
        ({}, "url = ", ["expected TOML", "headrace.toml"]),
    ],
)
@pytest.mark.parametrize("app", [(), ("--app", "mine")], ids=["alone", "app"])
def test_doctor_says_where_a_wrong_setting_comes_from(
    run: Run, run_json: RunJson, project: Path, env: dict[str, str], toml: str, words: list[str], app: tuple[str, ...]
) -> None:
    (project / "headrace.toml").write_text(toml)
    (project / "mine.py").write_text("from headrace import App\napp = App()\n")
    [failed] = [one for one in run_json("doctor", *app, env=env, code=1)["findings"] if one["level"] == "fail"]
    assert failed["check"] == "settings"
    assert not failed["what"].startswith("settings")
    for word in words:
        assert word in failed["what"]
    assert failed["advice"] == f"correct {words[-1]}"


def test_doctor_finds_a_wrong_setting_in_pyproject_and_in_an_option(run: Run, project: Path) -> None:
    (project / "headrace.toml").write_text("# nothing\n")
    (project / "pyproject.toml").write_text("[tool.headrace.worker]\nconcurrency = 0\n")
    assert "-> correct [tool.headrace] in pyproject.toml" in run("doctor", code=1).stdout
    (project / "pyproject.toml").unlink()
    assert "fail  settings: store URL" in run("doctor", "--url", "mysql://x", code=1).stdout
    assert "-> correct --url" in run("doctor", "--url", "mysql://x", code=1).stdout


def test_doctor_does_not_send_anybody_to_the_doctor(run: Run, project: Path) -> None:
    (project / "mine.py").write_text("from headrace import App\napp = App(worker={'lease': 'soon'})\n")
    told = run("doctor", "--app", "mine", code=1).stdout
    assert "fail  app: mine cannot be imported: ConfigError: " in told
    assert f"got 'soon' ({project / 'mine.py'}, line 2)" in told
    assert "fail  app: there is no module" in run("doctor", "--app", "nowhere", code=1).stdout
    (project / "notes.db").mkdir()
    store = run("doctor", "--url", "sqlite:///notes.db", code=1).stdout
    assert "fail  store: " in store
    assert "headrace doctor" not in told + store


def test_doctor_masks_secrets_in_settings(run_json: RunJson, project: Path) -> None:
    (project / "odd.py").write_text(
        "from headrace import App, connect, Client, Settings\n"
        "from headrace.backends.memory import MemoryBackend\n"
        "app = App(Client(MemoryBackend(), Settings(url='memory://me:hunter2@x/?token=abc')))\n"
    )
    report = run_json("doctor", "--app", "odd")
    assert report["settings"]["url"] == "memory://***@x/?token=***"


def test_the_wal_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    import apsw

    for number, level in (
        ("3.54.1", "ok"),
        ("3.51.3", "ok"),
        ("3.50.7", "ok"),
        ("3.44.6", "ok"),
        ("3.51.2", "warn"),
        ("3.50.6", "warn"),
        ("3.49.9", "warn"),
        ("3.40.1", "warn"),
    ):
        monkeypatch.setattr(apsw, "sqlite_lib_version", lambda number=number: number)
        assert disk_checks.sqlite_library().level == level, number


def test_bench(run: Run, run_json: RunJson, project: Path) -> None:
    report = run_json("bench", "--jobs", "50", "--rounds", "1")
    assert report["figures"].keys() == {
        "enqueue_sequential",
        "enqueue_concurrent",
        "enqueue_bulk",
        "drain",
        "pick_up",
        "request_response",
    }
    assert all(figure["median"] > 0 for figure in report["figures"].values())
    assert report["durable"]
    assert sorted(path.name for path in project.iterdir()) == ["jobs.py"]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_bench_of_a_store_leaves_nothing_in_it(run: Run, run_json: RunJson, kind: str) -> None:
    url = URL if kind == "sqlite" else ("--url", f"{server().url()}?schema=cli_bench")
    run("enqueue", "jobs.gone", *url)
    table = run("bench", *url, "--jobs", "20", "--rounds", "1").stdout
    assert "drain, one worker process" in table
    assert [job["task"] for job in run_json("job", "list", *url)["jobs"]] == ["jobs.gone"]
    assert [queue["queue"] for queue in run_json("queue", "list", *url)["queues"]] == ["default"]
    if kind == "postgres":
        with psycopg.connect(server().url()) as connection:
            names = [name for (name,) in connection.execute("SELECT name FROM cli_bench.queues_v1")]
        assert [name for name in names if not name.startswith("headrace-bench-")] == ["default"]


def test_bench_is_a_guest_in_a_store(run: Run, run_json: RunJson) -> None:
    """It plans no schedules, and takes no jobs back: that is for workers that have the settings of the store's apps."""
    prepare(beat=True, claim=1)

    async def plan_every_second() -> None:
        async with App(URL[1]) as app:
            await app.schedules.put(Every("1s", NewJob(task="jobs.gone"), name="s", jitter=0, overlap="skip"))

    asyncio.run(plan_every_second())
    run("bench", *URL, "--jobs", "20", "--rounds", "1")
    assert run_json("schedule", "show", "s", *URL)["runs"] == 0
    assert [job["state"] for job in run_json("job", "list", *URL)["jobs"]] == ["running"]


def test_bench_needs_a_store_for_two(run: Run) -> None:
    assert "lives in one process" in run("bench", "--url", "memory://", code=2).stderr


def test_an_app_may_be_loaded_twice(project: Path) -> None:
    assert load_target("jobs") is load_target("jobs.py:app")


def test_doctor_warns_when_others_can_read_the_store(run: Run, run_json: RunJson, project: Path) -> None:
    run("enqueue", "t", "--queue", "q", *URL)
    assert findings(run_json("doctor", *URL), "privacy") == [("ok", "only the owner of the files may read them")]
    (project / "jobs.db").chmod(0o644)
    [(level, what)] = findings(run_json("doctor", *URL), "privacy")
    assert level == "warn"
    assert "other users can open" in what
