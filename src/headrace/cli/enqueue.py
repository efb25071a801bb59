"""``headrace enqueue``: enqueue a job from the shell."""

from __future__ import annotations

from typing import Any

import click

from headrace import Handle
from headrace.cli import options
from headrace.cli.commands import Command
from headrace.cli.job_arguments import arguments_option, merge, new_job
from headrace.cli.job_output import as_json_text, in_words
from headrace.cli.loading import Store
from headrace.cli.options import answer_options
from headrace.cli.output import note, print_answer


@click.command("enqueue", cls=Command)
@click.argument("task", type=options.name)
@arguments_option
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
        job, results = new_job(store, task, merge(args, arg), given)
        handle: Handle[Any] = Handle(client, await client.enqueue(job), results)
        status = "replaced" if handle.replaced else "duplicate" if handle.duplicate else "new"
        shown = f"a job has that key already: {in_words(handle.state)}" if handle.duplicate else "queued"
        if handle.replaced:
            shown = f"the job that waits under that key was changed: {in_words(handle.state)}"
        data: dict[str, Any] = {"id": handle.id, "status": status, "state": handle.state.value}
        if not wait:
            print_answer(data, str(handle.id))
            note(shown)
            return
        note(f"{handle.id}  {shown}")
        data["result"] = await handle.result(timeout / 1e6)
        print_answer(data | {"state": "completed"}, as_json_text(data["result"]))
