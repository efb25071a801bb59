"""``manage.py headrace …``: the command line of Headrace, for the app of this project."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from headrace.cli.__main__ import cli
from headrace.cli.commands import ENV_PREFIX

APP = "headrace.contrib.django:app"


class Command(BaseCommand):
    """Hands everything to ``headrace``: ``worker``, ``job list``, ``migrate status`` …"""

    help = "Run workers, look at jobs, queues, schedules and dead letters: what the command 'headrace' does."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Django's own ``--settings`` and ``--pythonpath`` were read before; the rest is not for Django to read."""
        own = CommandParser(add_help=False, allow_abbrev=False)
        own.add_argument("--settings")
        own.add_argument("--pythonpath")
        self.handle(arguments=own.parse_known_args(argv[2:])[1])

    def add_arguments(self, parser: CommandParser) -> None:
        """For ``call_command``."""
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *args: Any, **given: Any) -> None:
        """Run it. It ends the process, with the exit codes of ``headrace``."""
        os.environ[f"{ENV_PREFIX}_APP"] = APP
        _inherit(Path(sys.argv[0]).resolve().parent)
        cli.main(args=list(given["arguments"]), prog_name="manage.py headrace")


def _inherit(directory: Path) -> None:
    """Child processes of a worker find the project where this process found it: beside ``manage.py``."""
    path = os.environ.get("PYTHONPATH", "")
    if str(directory) not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(directory), path]))
