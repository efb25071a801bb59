"""``headrace completion``: a shell's completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from headrace.cli.commands import Command

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  add to ~/.bashrc   eval "$(headrace completion bash)"
    zsh:   add to ~/.zshrc    eval "$(headrace completion zsh)"
    fish:  headrace completion fish > ~/.config/fish/completions/headrace.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    print(found(ctx.find_root().command, {}, "headrace", "_HEADRACE_COMPLETE").source())
