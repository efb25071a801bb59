"""The demo: makes a project in ./demo, starts two workers for it, gives them work, and checks what comes of it.

Exit code 0 only if every expectation held. It ends with the dashboard. The project is left for you to edit; no
process is.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import os
import secrets
import socket
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from urllib.request import urlopen

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


async def start_worker(name: str, *more: str) -> Process:
    """``headrace worker app:app``, which stops if this process is killed."""
    options = ["--log-format", "text", "--name", name, "--tethered", *more]
    command = [sys.executable, "-m", "headrace.cli", "worker", "app:app", *options]
    with (PROJECT / "worker.log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *command, cwd=PROJECT, stdin=PIPE, stdout=log, stderr=log, process_group=0,
            env=os.environ | {"HEADRACE_HTTP__WRITES": "true"},
        )  # fmt: skip


async def show_dashboard() -> bool:
    """Serve the dashboard beside a worker, and say where. On a terminal it stays until Ctrl-C; returns whether its
    first page came."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    worker = await start_worker("three", "--http", address)
    try:
        if not await page_comes(f"http://{address}/", worker):
            print(f"The dashboard did not come up: see {PROJECT / 'worker.log'}")
            return False
        print(f"\nThe dashboard: http://{address}/  (dead letters: http://{address}/dead)")
        if sys.stdout.isatty():
            print("It is live until you press Ctrl-C.")
            with suppress(asyncio.CancelledError):
                await worker.wait()
        return True
    finally:
        await stop_worker(worker)


async def page_comes(url: str, worker: Process) -> bool:
    """Whether the page can be read before a minute is over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(60):
            while worker.returncode is None:
                with suppress(OSError):
                    return b"<h1>Overview</h1>" in await asyncio.to_thread(lambda: urlopen(url, timeout=20).read())
                await asyncio.sleep(0.2)
    return False


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
    print(f"A project is in {PROJECT}; its workers log to worker.log there.")
    if kept:
        print(f"You have changed {', '.join(kept)}: these files stay as they are, so some steps below may fail.")
    project = load_project()
    workers = {name: await start_worker(name) for name in ("one", "two")}
    killed: list[str] = []

    def kill(name: str) -> None:
        killed.append(name)
        workers[name].kill()

    steps = Steps(project, secrets.token_hex(4), kill)
    try:
        async with project.app:
            held = await perform(steps)
    finally:
        codes = {name: await stop_worker(worker) for name, worker in workers.items()}
    well = held and all(code == 0 for name, code in codes.items() if name not in killed)
    if held and not well:
        print(f"The workers ended with exit codes {codes} instead of 0: see {PROJECT / 'worker.log'}")
    print_next(steps.dead_letter, all_well=well)
    return 0 if await show_dashboard() and well else 1


def print_next(dead_letter: str, *, all_well: bool) -> None:
    """Print what to try next."""
    script = Path(sys.executable).with_name("headrace")
    headrace = min(str(script), os.path.relpath(script, PROJECT), key=len)
    print(
        f"""
{"Everything came out as expected." if all_well else "Not everything came out as expected: see above."} Try next:

  cd {os.path.relpath(PROJECT)}
  {headrace} job list --app app:app
  {headrace} job why {dead_letter or "ID"} --app app:app
  {headrace} dead show {dead_letter or "ID"} --app app:app
  {headrace} schedule show chime --app app:app
  {headrace} dev app:app    # a worker that logs every event, and the dashboard; edit app.py, and it reloads
  {headrace} dead requeue --all --app app:app    # in another terminal, once you have fixed `broken`
  {headrace} enqueue fetch --app app:app --arg 'page="headrace"' --wait"""
    )


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(demo()))
    except KeyboardInterrupt:
        sys.exit(130)
