"""``headrace enqueue``: enqueue a job from the shell."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from headrace import App, Client, Handle, NewJob, Queue
from headrace.api.batch import BatchTask
from headrace.cli import options
from headrace.cli.commands import Command
from headrace.cli.job_output import as_json_text
from headrace.cli.loading import Store, load_target
from headrace.cli.options import answer_options
from headrace.cli.output import clean, note, print_answer
from headrace.cli.problems import NOT_FOUND, Problem
from headrace.payloads.codec import JsonSerde
from headrace.types import Encoded

_BY_NAME = """expected --args to be a JSON object of arguments by name, such as '{"user_id": 42}'"""


def argument(text: str) -> tuple[str, Any]:
    """``name=json`` as a pair."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"expected name=json, such as user_id=42, got {text!r}")
    hint = f"""for text, quote it twice: --arg '{clean(name)}="{clean(value)}"'"""
    return name, _decoded(value, f"{clean(name)}: ", hint)


def json(text: str) -> Any:
    """Any JSON, decoded."""
    return _decoded(text, "", """write it like this, quotes and all: --args '{"user_id": 42}'""")


def _decoded(text: str, what: str, hint: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except UnicodeError:  # bytes that are not UTF-8 come as lone surrogates
        why, hint = "it is not UTF-8", r"convert it, or write what is beyond ASCII as \u escapes"
    except RecursionError:
        why, hint = "it is nested too deeply", "pass less, such as the name of a file that holds it"
    except msgspec.DecodeError as error:
        why = str(error)
    raise click.BadParameter(f"{what}expected JSON, got {text!r:.80} ({why}); {hint}")


@click.command("enqueue", cls=Command)
@click.argument("task", type=options.name)
@click.option("--arg", type=argument, metavar="NAME=JSON", multiple=True, help="One argument; may be repeated.")
@click.option("--args", type=json, help="All arguments, as one JSON object.")
@click.option("--queue", type=options.name, help="The queue. Default: the task's own (without --app: default).")
@click.option("--delay", type=options.duration, help="Run it this much later, such as 10m.")
@click.option("--key", help="Dedup key: no second job of the queue can have it.")
@click.option("--unique", help="How long the key is taken: 'while pending', 'until done', or a time such as 10m.")
@click.option(
    "--on-duplicate",
    type=click.Choice(["keep", "replace", "replace arguments", "replace time"]),
    help="What becomes of a job that waits under the key. Default: keep.",
)
@click.option("--priority", type=int, help="Lower numbers run first.")
@click.option("--tenant", type=options.name, help="The tenant that the job belongs to.")
@click.option("--group", type=options.name, help="The group: its jobs run one after the other.")
@click.option("--wait", is_flag=True, help="Wait for the result and print it.")
@click.option("--timeout", type=options.duration, default="30s", help="How long to wait.")
@answer_options
async def enqueue_command(
    store: Store,
    task: str,
    arg: tuple[tuple[str, Any], ...],
    args: Any,
    wait: bool,
    timeout: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Enqueue a job for TASK and print its id.

    With --app, TASK must be a task of the app (the last part of its name is enough), and the arguments must fit its
    signature. The one task of a queue has the queue's name. Without --app, the job is stored unchecked.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if "delay" in given:
        given["delay"] = given["delay"] / 1e6
    async with store.opened(create=True) as client:
        handle = await _store(store, client, task, _merge(args, arg), given)
        status = "replaced" if handle.replaced else "duplicate" if handle.duplicate else "new"
        shown = f"a job has that key already: {handle.state.value}" if handle.duplicate else "queued"
        if handle.replaced:
            shown = f"the job that waits under that key was changed: {handle.state.value}"
        data: dict[str, Any] = {"id": handle.id, "status": status, "state": handle.state.value}
        if not wait:
            print_answer(data, str(handle.id), as_json=as_json)
            note(shown)
            return
        note(f"{handle.id}  {shown}")
        data["result"] = await handle.result(timeout / 1e6)
        print_answer(data | {"state": "completed"}, as_json_text(data["result"]), as_json=as_json)


def _merge(whole: Any, single: tuple[tuple[str, Any], ...]) -> Any:
    if not single:
        return {} if whole is None else whole
    if whole is not None and not isinstance(whole, dict):
        raise click.UsageError("expected --args to be a JSON object, because --arg adds to it")
    return {**(whole or {}), **dict(single)}


async def _store(store: Store, client: Client, task: str, payload: Any, options: dict[str, Any]) -> Handle[Any]:
    if store.app is not None:
        target = load_target(store.app)
        if isinstance(target, Queue):
            return await _for_queue(target, task, payload, options)
        return await _checked(target, task, payload, options)
    if not isinstance(payload, dict):
        raise click.UsageError(_BY_NAME)
    inserted = await client.enqueue(NewJob(task=task, args=payload, **options))
    return Handle(client, inserted, JsonSerde())


async def _for_queue(queue: Queue[Any, Any], task: str, payload: Any, options: dict[str, Any]) -> Handle[Any]:
    client, name = queue.client, queue.name
    if task != name or options.get("queue", name) != name:
        raise Problem(NOT_FOUND, f"queue {name!r} has one task, {name!r}, and no other", run=f"headrace enqueue {name}")
    cell = Encoded(client.packer.wrap_value(payload, JsonSerde(), "payload"))
    inserted = await client.enqueue(NewJob(**{"task": name, "queue": name, "args": cell, **options}))
    return Handle(client, inserted, JsonSerde())


async def _checked(app: App, name: str, payload: Any, options: dict[str, Any]) -> Handle[Any]:
    task = app.tasks[_full_name(app, name)]
    if isinstance(task, BatchTask):
        return await task.enqueue(payload, **options)
    if not isinstance(payload, dict):
        raise click.UsageError(_BY_NAME)
    return await app.enqueue_named(task.name, payload, **options)


def _full_name(app: App, name: str) -> str:
    if name in app.tasks:
        return name
    found = [known for known in app.tasks if known.endswith(f".{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise Problem(NOT_FOUND, f"more than one task is called {name!r}: {', '.join(found)}", run="use the full name")
    known = ", ".join(sorted(app.tasks)) or "none"
    raise Problem(NOT_FOUND, f"the app has no task {name!r}; it has: {known}", cause="a typo, or another app")
