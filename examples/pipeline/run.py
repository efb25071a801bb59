"""The demo: makes a project in ./demo, starts a worker for it, gives it work, and checks everything that comes of it.

Exit code 0 only if every expectation held. The project is left for you to edit; no process is.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import os
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from types import ModuleType

from board import Board
from steps import Steps, Unmet

from headrace.errors import HeadraceError

EXAMPLE = Path(__file__).resolve().parent
PROJECT = Path("demo").resolve()
FILES = ("app.py", *(f"pages/{page.name}" for page in sorted((EXAMPLE / "pages").iterdir())))
NOTES = PROJECT / ".copied.json"


def copy_project() -> list[str]:
    """Copy the example into ./demo. Files that you have changed stay as they are; returns their names."""
    before: dict[str, str] = json.loads(NOTES.read_text("utf-8")) if NOTES.exists() else {}
    kept, copied = [], {}
    for name in FILES:
        source, target = EXAMPLE / name, PROJECT / name
        body = source.read_bytes()
        if target.exists() and _digest(target.read_bytes()) not in (before.get(name), _digest(body)):
            kept.append(name)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(body)
        copied[name] = _digest(body)
    NOTES.write_text(json.dumps(before | copied, indent=1), "utf-8")
    return kept


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def load_project() -> ModuleType:
    """The copy's ``app.py``, not the example's."""
    sys.path.insert(0, str(PROJECT))
    return importlib.import_module("app")


async def start_worker() -> Process:
    """``headrace worker app:app``, which stops if this process is killed."""
    command = [sys.executable, "-m", "headrace.cli", "worker", "app:app", "--log-format", "text", "--tethered"]
    with (PROJECT / "worker.log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *command, cwd=PROJECT, stdin=PIPE, stdout=log, stderr=log, process_group=0
        )


async def stop_worker(worker: Process) -> int:
    """Stop it as a platform would: SIGTERM, and time to finish."""
    if worker.returncode is None:
        worker.terminate()
    try:
        async with asyncio.timeout(15):
            return await worker.wait()
    except TimeoutError:
        worker.kill()
        return await worker.wait()


async def perform(steps: Steps) -> bool:
    """Run all steps at once; returns whether all went as expected."""
    named = dict(steps)
    with Board(list(named)) as board:

        async def one(title: str) -> bool:
            try:
                held, outcome = True, await named[title]()
            except (Unmet, HeadraceError, TimeoutError) as error:
                held, outcome = False, f"{type(error).__name__}: {error}"
            board.tell(title, held, outcome)
            return held

        return all(await asyncio.gather(*map(one, named)))


async def demo() -> int:
    """Run the demo; returns the exit code."""
    kept = copy_project()
    print(f"A project is in {PROJECT}; its worker logs to worker.log there.")
    if kept:
        print(f"You have changed {', '.join(kept)}: these files stay as they are, so some steps below may fail.")
    project = load_project()
    steps = Steps(project, secrets.token_hex(4))
    worker = await start_worker()
    try:
        async with project.app:
            held = await perform(steps)
    finally:
        code = await stop_worker(worker)
    if code != 0:
        print(f"The worker ended with exit code {code} instead of 0: see {PROJECT / 'worker.log'}")
    print_next(steps.dead_letter, all_well=held and code == 0)
    return 0 if held and code == 0 else 1


def print_next(dead_letter: str, *, all_well: bool) -> None:
    """Print what to try next."""
    script = Path(sys.executable).with_name("headrace")
    headrace = min(str(script), os.path.relpath(script, PROJECT), key=len)
    print(
        f"""
{"Everything came out as expected." if all_well else "Not everything came out as expected: see above."} Try next:

  cd {os.path.relpath(PROJECT)}
  {headrace} job list --app app:app
  {headrace} dead show {dead_letter or "ID"} --app app:app
  {headrace} dev app:app    # a worker that logs every event; edit app.py, and it reloads
  {headrace} dead requeue --all --app app:app    # in another terminal, once you have fixed `broken`
  {headrace} enqueue fetch --app app:app --arg 'page="headrace"' --wait"""
    )


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(demo()))
    except KeyboardInterrupt:
        sys.exit(130)
