"""Options that several commands share, and the values they become."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from headrace.cli.commands import ENV_PREFIX
from headrace.cli.loading import Store
from headrace.cli.output import answer_in_json
from headrace.core.durations import micros
from headrace.core.ids import parse_id
from headrace.core.names import check_name
from headrace.errors import ConfigError, InvalidJob
from headrace.limits.rates import check_rules
from headrace.seam.instants import from_datetime, to_datetime
from headrace.seam.records import JobId, Selector
from headrace.types import JobState

F = TypeVar("F", bound=Callable[..., Any])


def duration(text: str) -> int:
    """A length of time in microseconds; a bare number is seconds."""
    try:
        return micros(_with_unit(text))
    except ConfigError as error:
        raise click.BadParameter(str(error).removeprefix("duration: ")) from None


def instant(text: str) -> int:
    """An instant; in local time if no time zone is given."""
    try:
        return from_datetime(datetime.fromisoformat(text).astimezone())
    except (ValueError, OverflowError):
        raise click.BadParameter(f"expected a date and time such as 2030-01-01T06:30, got {text!r}") from None


def when(at: int | None) -> datetime | None:
    """An instant that may not be given."""
    return None if at is None else to_datetime(at)


since_option = click.option("--since", type=instant, metavar="TIME", help="Only jobs that ended then or later.")
until_option = click.option("--until", type=instant, metavar="TIME", help="Only jobs that ended then or before.")


def lasts(text: str) -> int:
    """How long a pause lasts."""
    length = duration(text)
    if not length:
        resume = click.get_current_context().command_path.rpartition(" ")[0]
        raise click.BadParameter(f"expected more than 0s, got {text!r}; to end a pause: {resume} resume")
    return length


def _with_unit(text: str) -> str:
    return f"{text}s" if text.replace(".", "", 1).isdigit() else text


def job_id(text: str) -> JobId:
    """A job's id, a UUID in any of its spellings."""
    try:
        return parse_id(text)
    except InvalidJob as error:
        raise click.BadParameter(f"{error}. 'headrace job list' shows ids") from None


def name(text: str) -> str:
    """A name that a store can take."""
    try:
        return check_name(text, "name")
    except InvalidJob as error:
        raise click.BadParameter(str(error)) from None


def tenant(text: str) -> str:
    """A tenant; the empty name stands for jobs without one."""
    try:
        return check_name(text, "tenant", empty=True)
    except InvalidJob as error:
        raise click.BadParameter(str(error)) from None


def rule(name: str, text: str) -> Any:
    """What ``Policies.set`` takes for a rule; None removes it."""
    if text.lower() == "none":
        return None
    given: Any = text
    if name == "ageing":
        given = _with_unit(text)
    elif name not in ("rate", "tenant_rate"):
        given = int(text) if text.isdecimal() and len(text) < 20 else text
    try:
        check_rules({name: given})
    except ConfigError as error:
        raise click.BadParameter(str(error).removeprefix(f"{name}: ")) from None
    return given


def rule_option(flag: str, metavar: str, help: str) -> Callable[[F], F]:
    """An option that is a rule of a policy, checked and given as text."""

    def check(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
        if text is not None:
            rule(param.name or "", text)
        return text

    return click.option(flag, metavar=metavar, callback=check, help=help)


def store_options(command: F) -> F:
    """``--url`` and ``--app``, given to the command as ``store``."""

    @functools.wraps(command)
    def collected(*args: Any, url: str | None, app: str | None, **kwargs: Any) -> Any:
        source = click.get_current_context().get_parameter_source("app")
        if url is not None and app is not None:
            if source is click.core.ParameterSource.COMMANDLINE:
                raise click.UsageError("expected --url or --app, got both")
            app = None
        return command(*args, store=Store(url, app), **kwargs)

    decorated = click.option(
        "--app", metavar="MODULE:ATTR", envvar=f"{ENV_PREFIX}_APP", help="The app or queue whose store to use.",
        show_envvar=True,
    )(collected)  # fmt: skip
    return click.option(
        "--url", metavar="URL", help="The store, such as sqlite:///jobs.db.  [env var: HEADRACE_URL]"
    )(decorated)  # type: ignore[return-value]  # fmt: skip


def filter_options(*, states: bool = False) -> Callable[[F], F]:
    """``--queue``, ``--task``, ``--tenant``, ``--older-than``, ``--reason`` and maybe ``--state``, given as
    ``filters``."""

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def collected(*args: Any, state: tuple[str, ...] = (), **kwargs: Any) -> Any:
            given = {name: kwargs.pop(name) for name in ("queue", "task", "tenant", "older_than", "reason")}
            wanted = frozenset(map(JobState, state)) or None
            return command(*args, filters=Selector(**given, states=wanted), **kwargs)

        options = [
            click.option("--queue", type=name, help="Only jobs of this queue."),
            click.option("--task", type=name, help="Only jobs of this task."),
            click.option("--tenant", type=name, help="Only jobs of this tenant."),
            click.option("--older-than", type=duration, help="Only jobs enqueued at least this long ago, such as 2h."),
            click.option("--reason", type=name, help="Only jobs that ended for this reason, such as lost."),
        ]
        if states:
            choice = click.Choice([state.value for state in JobState])
            options.append(click.option("--state", type=choice, multiple=True, help="Only jobs in this state."))
        decorated: Any = collected
        for option in reversed(options):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


def json_option(command: F) -> F:
    """``--json``, which ``answered`` goes by."""
    decorate = click.option(
        "--json", is_flag=True, expose_value=False, callback=answer_in_json, help="Print one JSON document."
    )
    return decorate(command)


def answer_options(command: F) -> F:
    """The options of a command that asks a store and answers people or programs: ``--json``, ``--url``, ``--app``."""
    return json_option(store_options(command))


def yes_option(command: F) -> F:
    """``--yes``."""
    return click.option("--yes", is_flag=True, help="Do not ask.")(command)


def limit_option(default: int, help: str, *, most: int = 100_000) -> Callable[[F], F]:
    """``--limit``."""
    return click.option("--limit", type=click.IntRange(1, most), metavar="N", default=default, help=help)
