"""``headrace config``: the settings in force, and where each comes from."""

from __future__ import annotations

import os
from typing import Any

import click

from headrace import Settings
from headrace.cli.commands import Group
from headrace.cli.doctor_checks import effective
from headrace.cli.loading import Store
from headrace.cli.options import answer_options
from headrace.cli.output import answered, print_table
from headrace.cli.setting_source import settings_file
from headrace.core.environment import PREFIX

_UNCHANGED = "default"


@click.group("config", cls=Group)
def config_command() -> None:
    """Show the settings in force."""


@config_command.command("show")
@click.option("--origins", is_flag=True, help="Also show where each setting comes from.")
@answer_options
def show_command(store: Store, origins: bool) -> None:
    """Show all settings, without secrets.

    With --app, those of the app: what its code sets wins over the environment, the environment over the file.
    """
    before = dict(os.environ)
    client = store.client()
    now, sources = effective(client.settings), _origins(client.settings, before, given_url=store.url is not None)
    if answered({name: {"value": value, "origin": sources[name]} if origins else value for name, value in now.items()}):
        return
    heads = ["setting", "value", "origin"] if origins else ["setting", "value"]
    rows = [[name, "" if value is None else value, sources[name]][: len(heads)] for name, value in now.items()]
    print_table(heads, rows)


def _origins(settings: Settings, env: dict[str, str], *, given_url: bool) -> dict[str, str]:
    """By name: an option, code, a variable, a file, or none of these."""
    default = effective(Settings())
    from_file = effective(Settings.load({}, env={}))
    from_both = effective(Settings.load({}, env=env))
    found: dict[str, str] = {}
    for name, value in effective(settings).items():
        variable = PREFIX + name.replace(".", "__").upper()
        found[name] = _origin(value, default.get(name), from_file.get(name), from_both.get(name), variable in env)
        if found[name] == "variable":
            found[name] = variable
    if given_url:
        found["url"] = "--url"
    return found


def _origin(value: Any, default: Any, from_file: Any, from_both: Any, in_env: bool) -> str:
    if value != from_both:
        return "code"
    if in_env:
        return "variable"
    return settings_file() if from_file != default else _UNCHANGED
