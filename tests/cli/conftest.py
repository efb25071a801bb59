"""A project directory, the command line in this process, and real worker processes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace import App
from headrace.cli.__main__ import cli
from headrace.cli.loading import load_target

DEADLINE = 60.0
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the person's own settings."""
    for name in list(os.environ):
        if name.startswith("HEADRACE_") or name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command may be told to log in its own way, by options or by the module that it imports."""
    root = logging.getLogger()
    before = {log: (log.level, log.propagate, log.disabled, log.handlers[:]) for log in (root, *_loggers())}
    yield
    for log in _loggers():
        level, log.propagate, log.disabled, log.handlers = before.get(log, (logging.NOTSET, True, False, []))
        log.setLevel(level)
    root.setLevel(before[root][0])
    logging.captureWarnings(False)


def _loggers() -> list[logging.Logger]:
    return [log for log in logging.getLogger().manager.loggerDict.values() if isinstance(log, logging.Logger)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with ``jobs.py`` in it, whose app is on ``sqlite:///jobs.db``."""
    shutil.copy(HERE / "project.py", tmp_path / "jobs.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


Run = Callable[..., Result]


@pytest.fixture
def run(project: Path) -> Run:
    """``run("job", "list")`` in the project, as if typed; errors that are no messages come through."""

    def invoke(*arguments: object, code: int = 0, env: dict[str, str] | None = None, **more: Any) -> Result:
        result = CliRunner(env=env).invoke(cli, [str(a) for a in arguments], prog_name="headrace", **more)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, f"exit code {result.exit_code}:\n{result.output}"
        return result

    return invoke


@pytest.fixture
def shop(project: Path) -> Callable[[Callable[[App], Awaitable[Any]]], Any]:
    """``shop.py`` beside it, whose app is in memory, and so there for as long as the test. What is called with the app
    is run in its store: ``shop(lambda app: app.client.pause("mail"))``."""
    (project / "shop.py").write_text(_SHOP)

    def work(what: Callable[[App], Awaitable[Any]]) -> Any:
        app = load_target("shop")
        assert isinstance(app, App)

        async def main() -> Any:
            async with app:
                return await what(app)

        return asyncio.run(main())

    return work


_SHOP = """
from headrace import App

app = App("memory://")

@app.task(queue="mail", name="send")
async def send(to: str = "ada") -> None: ...
"""


@pytest.fixture
def run_json(run: Run) -> Callable[..., Any]:
    """The same with ``--json``, decoded."""
    return lambda *arguments, **more: json.loads(run(*arguments, "--json", **more).stdout)


class Process:
    """A ``headrace`` process whose log lines can be waited for."""

    def __init__(self, *arguments: object, cwd: Path, env: dict[str, str] | None = None) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", *map(str, arguments)],
            cwd=cwd,
            env=os.environ | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        self.lines: list[str] = []
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        with self.popen.stdout as lines:
            for line in lines:
                self._queue.put(line)
        self._queue.put(None)

    def line(self, wanted: Callable[[str], bool]) -> str:
        """The next line that is wanted."""
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                line = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            assert line is not None, f"no such line in time; there were:\n{''.join(self.lines)}"
            self.lines.append(line)
            if wanted(line):
                return line

    def text(self, part: str) -> str:
        """The next line with this in it."""
        return self.line(lambda line: part in line)

    def event(self, kind: str) -> dict[str, Any]:
        """The next event of this kind, from JSON logs."""
        found: dict[str, Any] = json.loads(self.line(lambda line: f'"event": "{kind}"' in line))
        return found

    def send(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def ended(self) -> int:
        """Its exit code; all output is in ``lines`` then."""
        code = self.popen.wait(DEADLINE)
        self._reader.join(DEADLINE)
        while (line := self._queue.get(timeout=DEADLINE)) is not None:
            self.lines.append(line)
        return code

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()
        self._reader.join(DEADLINE)


@pytest.fixture
def start(project: Path) -> Iterator[Callable[..., Process]]:
    """Start ``headrace`` as a process in the project; what still runs at the end of the test is killed."""
    started: list[Process] = []

    def begin(*arguments: object, **more: Any) -> Process:
        process = Process(*arguments, cwd=project, **more)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
