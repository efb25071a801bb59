"""The job that ``TASK``, ``--arg`` and ``--args`` stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from headrace import App, NewJob, Queue
from headrace.api.batch import BatchTask
from headrace.cli.loading import Store, load_target
from headrace.cli.output import clean
from headrace.cli.problems import NOT_FOUND, Problem
from headrace.payloads.codec import JsonSerde
from headrace.types import Encoded

F = TypeVar("F", bound=Callable[..., Any])
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


def arguments_option(command: F) -> F:
    """``--arg`` and ``--args``."""
    command = click.option("--args", type=json, help="All arguments, as one JSON object.")(command)
    return click.option(
        "--arg", type=argument, metavar="NAME=JSON", multiple=True, help="One argument; may be repeated."
    )(command)


def merge(whole: Any, single: tuple[tuple[str, Any], ...]) -> Any:
    """What ``--args`` and ``--arg`` say together."""
    if not single:
        return {} if whole is None else whole
    if whole is not None and not isinstance(whole, dict):
        raise click.UsageError("expected --args to be a JSON object, because --arg adds to it")
    return {**(whole or {}), **dict(single)}


def new_job(store: Store, task: str, payload: Any, options: dict[str, Any]) -> tuple[NewJob, JsonSerde[Any]]:
    """The job, and how its result is read. With an app, the job is one of its tasks, and the payload is checked."""
    if store.app is None:
        return NewJob(task=task, args=_by_name(payload), **options), JsonSerde()
    target = load_target(store.app)
    if isinstance(target, Queue):
        return _for_queue(target, task, payload, options), JsonSerde()
    return _checked(target, task, payload, options)


def _by_name(payload: Any) -> dict[str, Any]:
    if not isinstance(payload, dict):
        raise click.UsageError(_BY_NAME)
    return payload


def _for_queue(queue: Queue[Any, Any], task: str, payload: Any, options: dict[str, Any]) -> NewJob:
    name = queue.name
    if task != name or options.get("queue", name) != name:
        command = click.get_current_context().command_path
        raise Problem(NOT_FOUND, f"queue {name!r} has one task, {name!r}, and no other", run=f"{command} {name}")
    cell = Encoded(queue.client.packer.wrap_value(payload, JsonSerde(), "payload"))
    return NewJob(**{"task": name, "queue": name, "args": cell, **options})


def _checked(app: App, name: str, payload: Any, options: dict[str, Any]) -> tuple[NewJob, JsonSerde[Any]]:
    task = app.tasks[_full_name(app, name)]
    if isinstance(task, BatchTask):
        return task.job(payload, **options), JsonSerde()
    return task.options(**options).job(**_by_name(payload)), task.results


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
