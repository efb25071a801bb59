"""The files in ``deploy/``: their schemas, and that their commands do what they are there for."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes_validate
import psycopg
import pytest
import yaml
from dockerfile_parse import DockerfileParser

from headrace.core.durations import micros
from tests.postgres import server

DEPLOY = Path(__file__).parents[1] / "deploy"
APP = """
import time
from pathlib import Path

from headrace import App

app = App()


@app.task(queue="mail")
def hello() -> str:
    return "hello"


@app.task
def hold(until: str) -> None:
    while not Path(until).exists():
        time.sleep(0.05)
"""
DEADLINE = 120


class Unit(NamedTuple):
    """A worker as a file describes it."""

    command: list[str]
    environment: dict[str, str]
    probes: list[list[str]]
    stop_seconds: float
    """How long its supervisor waits after SIGTERM."""


def systemd() -> Unit:
    text = (DEPLOY / "headrace-worker.service").read_text()
    given = [line.partition("=")[::2] for line in text.splitlines() if re.match(r"\w+=", line)]
    single = dict(given)
    environment = dict(value.split("=", 1) for name, value in given if name == "Environment")
    assert single["KillMode"] == "mixed"
    assert single["Restart"] == "always"
    return Unit(shlex.split(single["ExecStart"]), environment, [], float(single["TimeoutStopSec"]))


def docker() -> Unit:
    found = DockerfileParser(str(DEPLOY / "Dockerfile")).structure
    last = {step["instruction"]: step["value"] for step in found}
    assert last["USER"] != "root"
    environment = dict(part.split("=", 1) for part in last["ENV"].split())
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["worker"]
    assert compose["command"] == json.loads(last["CMD"])
    assert "HEALTHCHECK" not in last, "web processes have the same image, and no worker"
    [kind, *probe] = compose["healthcheck"]["test"]
    assert kind == "CMD"
    return Unit(json.loads(last["CMD"]), environment, [probe], micros(compose["stop_grace_period"]) / 1e6)


def kubernetes() -> Unit:
    pod = next(yaml.safe_load_all((DEPLOY / "kubernetes" / "worker.yaml").read_text()))["spec"]["template"]["spec"]
    [container] = pod["containers"]
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    probes = [container[name] for name in ("livenessProbe", "readinessProbe")]
    assert all(probe["timeoutSeconds"] > 15 for probe in probes), "as long as the command may take"
    commands = [probe["exec"]["command"] for probe in probes]
    return Unit(container["command"], environment, commands, pod["terminationGracePeriodSeconds"])


@pytest.fixture
def database() -> Iterator[str]:
    name = f"deploy_{os.getpid()}"
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}"')
        connection.execute(f'CREATE DATABASE "{name}"')
    yield server().url(name)
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def run(command: Sequence[str], cwd: Path, environment: dict[str, str]) -> int:
    """Run ``headrace …`` as it is written in a file; its exit code."""
    return subprocess.run(_here(command), cwd=cwd, env=environment, capture_output=True, timeout=DEADLINE).returncode


def _here(command: Sequence[str]) -> list[str]:
    assert command[0].rpartition("/")[2] == "headrace"
    return [sys.executable, "-m", "headrace.cli", *command[1:]]


@pytest.mark.parametrize("unit", [systemd, docker, kubernetes])
def test_workers_start_are_found_healthy_and_stop(unit: Any, tmp_path: Path, database: str) -> None:
    found: Unit = unit()
    (tmp_path / "shop.py").write_text(APP)
    own = {name: value for name, value in found.environment.items() if name.startswith("HEADRACE")}
    environment = os.environ | own | {"HEADRACE_URL": database}
    assert micros(environment["HEADRACE_WORKER__GRACE"]) / 1e6 < found.stop_seconds
    assert run(["headrace", "migrate", "up"], tmp_path, environment) == 0
    probes = found.probes or [["headrace", "health", "--here", "--workers", "2"]]
    worker = subprocess.Popen(_here(found.command), cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + DEADLINE
        while any(run(probe, tmp_path, environment) for probe in probes):
            assert worker.poll() is None
            assert time.monotonic() < deadline
        assert run(["headrace", "enqueue", "shop.hello", "--app", "shop", "--wait"], tmp_path, environment) == 0
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(DEADLINE) == 0
        assert all(run(probe, tmp_path, environment) == 1 for probe in probes)
    finally:
        worker.kill()
        worker.wait()


KNOWN = {
    "Unit": {"Description", "After", "Wants", "StartLimitIntervalSec"},
    "Service": {
        "Type", "User", "WorkingDirectory", "Environment", "ExecStart", "KillMode", "TimeoutStopSec", "Restart",
        "RestartSec", "NoNewPrivileges", "PrivateTmp", "ProtectSystem",
    },
    "Install": {"WantedBy"},
}  # fmt: skip
"""The keys of systemd that the unit has, by section, from systemd's manuals."""


def test_the_unit_has_keys_that_systemd_knows(tmp_path: Path) -> None:
    """By its manuals, and where systemd is there, by itself: it ignores a misspelt key."""
    text = (DEPLOY / "headrace-worker.service").read_text()
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line.startswith("["):
            keys = found.setdefault(line.strip("[]"), set())
        elif name := re.match(r"\w+(?==)", line):
            keys.add(name[0])
    assert found == KNOWN
    if (systemd_analyze := shutil.which("systemd-analyze")) is not None:
        unit = tmp_path / "headrace-worker.service"
        unit.write_text(text.replace("/srv/shop/.venv/bin/headrace", sys.executable))
        assert _told([systemd_analyze, "verify", unit]) == (0, "")
        unit.write_text(unit.read_text().replace("RestartSec=", "RestartSecs="))
        assert "Unknown key" in _told([systemd_analyze, "verify", unit])[1]


def test_the_dockerfile_is_clean() -> None:
    """By hadolint where it is there, and by the rules that matter here."""
    steps = DockerfileParser(str(DEPLOY / "Dockerfile")).structure
    images = [step["value"].split()[0] for step in steps if step["instruction"] == "FROM"]
    assert images
    assert all(re.fullmatch(r".+:\d.*", image) for image in images), "a tag that says which version"
    assert all(step["value"].startswith("/") for step in steps if step["instruction"] == "WORKDIR")
    installs = [step["value"] for step in steps if "pip install" in step["value"]]
    assert installs
    assert all("--no-cache-dir" in step for step in installs)
    if (hadolint := shutil.which("hadolint", path=str(Path(sys.executable).parent))) is not None:
        assert _told([hadolint, DEPLOY / "Dockerfile"]) == (0, "")


def _told(command: Sequence[str | Path]) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("file", ["worker.yaml", "migrate.yaml"])
def test_manifests_fit_their_schema(file: str) -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes" / file).read_text()))
    assert documents
    for document in documents:
        kubernetes_validate.validate(document, "1.30", strict=True)


def test_the_compose_file_fits_its_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, DEPLOY / "compose.yaml"], capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert services["migrate"]["environment"] == services["worker"]["environment"]


def test_the_query_for_autoscaling_counts_what_is_due_and_what_runs(tmp_path: Path, database: str) -> None:
    scaled = yaml.safe_load((DEPLOY / "kubernetes" / "autoscaling.yaml").read_text())["spec"]
    worker = next(yaml.safe_load_all((DEPLOY / "kubernetes" / "worker.yaml").read_text()))
    assert scaled["scaleTargetRef"]["name"] == worker["metadata"]["name"]
    query = scaled["triggers"][0]["metadata"]["query"]
    (tmp_path / "shop.py").write_text(APP)
    environment = os.environ | {"HEADRACE_URL": database}
    enqueue = ["headrace", "enqueue", "shop.hello", "--app", "shop"]
    assert run([*enqueue, "--delay", "1h"], tmp_path, environment) == 0
    with psycopg.connect(database, autocommit=True) as connection:
        assert connection.execute(query).fetchall() == [(0,)]  # no worker is started for what is due in an hour
        for due in (1, 2):
            assert run(enqueue, tmp_path, environment) == 0
            assert connection.execute(query).fetchall() == [(due,)]
        hold = ["headrace", "enqueue", "shop.hold", "--app", "shop", "--arg", f'until="{tmp_path}/end"']
        assert run(hold, tmp_path, environment) == 0
        command = _here(["headrace", "worker", "shop:app", "--queue", "default"])
        worker = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
        try:
            running = "SELECT available, running FROM headrace.stats_v1(NULL, 10000, ARRAY['default'])"
            _until(worker, lambda: connection.execute(running).fetchall() == [(0, 1)])
            assert connection.execute(query).fetchall() == [(3,)]
            (tmp_path / "end").touch()
            _until(worker, lambda: connection.execute(query).fetchall() == [(2,)])
        finally:
            worker.kill()
            worker.wait()


def _until(worker: subprocess.Popen[bytes], reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not reached():
        assert worker.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_page_names_every_file() -> None:
    page = (DEPLOY.parent / "docs" / "howto" / "deploy.md").read_text()
    files = [path.relative_to(DEPLOY.parent) for path in DEPLOY.rglob("*") if path.is_file()]
    assert [str(path) for path in files if str(path) not in page] == []
