"""Base classes of commands: imported on use, options from the environment, errors as exit codes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from headrace.cli.problems import OK, report

ENV_PREFIX = "HEADRACE_CLI"
"""Not ``HEADRACE_*``, which names settings. Options that *are* settings have no variable with this prefix."""


class Command(click.Command):
    """A command with ``--debug``; its help names its environment variables. Its function may be async."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(debug_option())

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; an async function on a loop of its own."""
        value = super().invoke(ctx)
        return asyncio.run(value) if asyncio.iscoroutine(value) else value

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Explain how to set options in the environment."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        variable = f"{ctx.auto_envvar_prefix}_SOME_OPTION"
        formatter.write_text(f"Any option can come from the environment: --some-option as {variable}.")


class Group(click.Group):
    """A group of such commands."""

    command_class = Command


class Root(Group):
    """The whole command line. Help imports no command; every error becomes a message and an exit code."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(debug_option())
        self._lazy = lazy
        """Command name → (module, one-line help). The module defines ``NAME_command``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which a newcomer needs them."""
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        if cmd_name not in self._lazy:
            return None
        command = getattr(import_module(self._lazy[cmd_name][0]), f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click, with a suggestion for a misspelt command."""
        if args and args[0] not in self._lazy and not args[0].startswith("-"):
            close = get_close_matches(args[0], self._lazy, 1)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {close[0]!r}?" if close else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in self._lazy.items()])

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run, then exit with the matching code."""
        extra["standalone_mode"] = False
        state: dict[str, bool] = {}
        try:
            code = super().main(args, *rest, obj=state, **extra)
        except Exception as error:
            code = report(error, debug=state.get("debug", False))
        sys.exit(code if isinstance(code, int) else OK)


def debug_option() -> click.Option:
    """``--debug``: show the tracebacks of errors."""
    return click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        envvar=f"{ENV_PREFIX}_DEBUG",
        callback=_note_debug,
        help="Show tracebacks.",
    )


def _note_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().obj["debug"] = True
