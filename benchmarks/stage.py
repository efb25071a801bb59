"""The harness's end of the line: children started, told to go and stop, listened to, and never left behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.server import Server
from benchmarks.venvs import ROOT

_RAISED = re.compile(r"[\w.]+(Error|Exception|Exit)\b")


class ActorFailed(Exception):
    """A child ended, or was killed for taking too long, before it had an answer."""


class Actor:
    """One child process. ``result`` waits for its answer; ``close`` ends it, whatever it is doing."""

    def __init__(
        self,
        command: Sequence[str],
        order: dict[str, Any],
        *,
        folder: Path,
        limit: float,
    ) -> None:
        self._what = f"{order['system']} {order['role']}"
        handle, name = tempfile.mkstemp(suffix=".err", dir=folder)
        self._errors = Path(name)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        environment |= {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            [*command, "-m", "benchmarks.actor", json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=handle,
            text=True,
            cwd=folder,
            env=environment,
        )
        os.close(handle)
        self._late = False
        self._watchdog = threading.Timer(limit, self._kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    def ready(self) -> None:
        """Wait until it has set itself up."""
        self._hear("ready")

    def go(self) -> None:
        """Start the clock."""
        self._tell("go")

    def stop(self) -> None:
        """Ask it to end and to answer."""
        self._tell("stop")

    def result(self) -> Any:
        """Its answer."""
        answer = self._hear("result")
        self._process.wait()
        return answer

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def errors(self) -> str:
        """All that it wrote to its standard error."""
        return self._errors.read_text("utf-8", "replace")

    def close(self) -> None:
        """Leave nothing behind."""
        self._watchdog.cancel()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass

    def _kill(self) -> None:
        self._late = True
        self._process.kill()

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(word + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ActorFailed(self._last_words()) from None

    def _hear(self, name: str) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if name in message:
                return message[name]
        self._process.wait()
        raise ActorFailed(self._last_words())

    def _last_words(self) -> str:
        if self._late:
            return f"{self._what}: took too long"
        lines = [line.strip(" |+-") for line in self.errors().strip().splitlines()]
        raised = [line for line in lines if _RAISED.match(line)]  # in a group, other lines come after it
        words = (raised or lines or [f"ended with exit code {self._process.poll()}"])[-1]
        return f"{self._what}: {words}"


class Stage:
    """The children of one measurement, the directory that they share and, where their store is a server, the
    databases; all of it is gone afterwards."""

    def __init__(self, base: Path | None, limit: float, server: Server | None = None) -> None:
        self._base = base
        self._limit = limit
        self._server = server
        self._stack = ExitStack()

    def __enter__(self) -> Stage:
        name = tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=self._base, ignore_cleanup_errors=True)
        self.folder = Path(self._stack.enter_context(name))
        if self._server is not None:
            try:
                self.database = self._stack.enter_context(self._server.databases(self.folder))
            except BaseException:
                self._stack.close()
                raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def start(
        self,
        python: str,
        system: str,
        role: str,
        *,
        core: int | None = None,
        wrapper: Sequence[str] = (),
        limit: float | None = None,
        **arguments: Any,
    ) -> Actor:
        """A child that is setting itself up; ``place`` in its arguments is the shared directory."""
        order = {"system": system, "role": role, "core": core, "arguments": {"place": str(self.folder), **arguments}}
        actor = Actor([*wrapper, python], order, folder=self.folder, limit=limit or self._limit)
        self._stack.callback(actor.close)
        return actor

    def play(self, python: str, system: str, role: str, **arguments: Any) -> Any:
        """A child from its start to its answer."""
        actor = self.start(python, system, role, **arguments)
        actor.ready()
        actor.go()
        answer = actor.result()
        actor.close()
        return answer
