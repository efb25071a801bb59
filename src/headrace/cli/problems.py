"""What went wrong, for people: what happened, the likely cause, the command to run; and the exit code for programs."""

from __future__ import annotations

import re
import shlex
import sys
import traceback
from typing import TYPE_CHECKING

import click

from headrace.text import one_line, without_secrets

if TYPE_CHECKING:
    from headrace.errors import QueueFull

OK, FAILED, USAGE, NOT_FOUND, CONFLICT, UNAVAILABLE = 0, 1, 2, 3, 4, 75
INTERRUPTED = 130

_SCHEME = re.compile(r"'?(redis|valkey|postgres)[a-z]*(\+[a-z]+)?://")
"""The beginning of a message that names a store on a server."""


class Problem(Exception):
    """An error as people see it."""

    def __init__(self, code: int, what: str, *, cause: str = "", run: str = "") -> None:
        super().__init__(what)
        self.code = code
        self.what = what
        self.cause = cause
        self.run = run

    def show(self) -> None:
        """Print it to stderr, one line for each part."""
        from headrace.cli.output import clean, paint

        stream = sys.stderr
        for label, text, colour in (("error", self.what, "red"), ("cause", self.cause, ""), ("run", self.run, "")):
            if text:
                print(f"{paint(f'{label}:', colour, stream)} {clean(without_secrets(text))}", file=stream)


_FULL = {
    "valkey": (
        "the server has reached its maxmemory; this is not about a disk",
        "headrace dead purge, or a worker with HEADRACE_RETENTION__COMPLETED__COUNT=1000 for a while, or CONFIG SET "
        "maxmemory on the server",
    ),
}
_NOT_OURS = {
    "valkey": (
        "another release created the store, or the keys belong to another program",
        "the same command with the release that made it, or with another ?prefix=NAME in the URL",
    ),
    "postgres": (
        "this is not a store of Headrace, or another version created it",
        "headrace migrate status; or give the right store with --url",
    ),
    "": (
        "this is not a file of Headrace, or another version created it",
        "the same command with --url sqlite:///path/to/file.db for the right file",
    ),
}


def explain(error: Exception) -> Problem:
    """The problem behind an error of the library."""
    from headrace import errors

    text = str(error)
    match error:
        case errors.Unavailable() | errors.SchemaMismatch() | errors.Corrupt():
            return _of_store(error, text, _store(text))
        case errors.UnknownTask():
            return Problem(NOT_FOUND, text, cause="a typo, or the task is in another app")
        case errors.InvalidJob() | errors.PayloadTooLarge() | errors.CodecError():
            return Problem(USAGE, text, cause="invalid input; nothing was stored")
        case errors.ConfigError() if isinstance(error.__cause__, ImportError):
            return Problem(USAGE, text)
        case errors.ConfigError():
            cause = "an option, a HEADRACE_* variable, headrace.toml or the app's own settings"
            return Problem(USAGE, text, cause="" if _store(text) else cause, run="headrace doctor")
        case errors.JobNotFound():
            return Problem(NOT_FOUND, text, run="headrace job list")
        case errors.ScheduleNotFound():
            return Problem(NOT_FOUND, text, run="headrace schedule list")
        case errors.QueueFull():
            return Problem(
                UNAVAILABLE,
                text,
                cause="jobs arrive faster than workers finish them, or no worker runs",
                run=f"{_depths(error)} for the depth; headrace health for the workers",
            )
        case errors.WaitTimeout():
            return Problem(FAILED, text, cause="no worker has taken it yet, or it takes longer", run="headrace health")
        case errors.JobFailed():
            return Problem(FAILED, text, run=f"headrace dead show {error.job_id}")
        case _:
            return Problem(FAILED, text)


def _of_store(error: Exception, text: str, store: str) -> Problem:
    """The problem with a store: of a file, if ``store`` is empty."""
    from headrace import errors

    match error:
        case errors.StoreFull():
            cause, run = _FULL.get(store, ("the disk is full", "headrace dead purge, or free some space"))
        case errors.Unavailable() if isinstance(error, errors.ConfigError):
            cause = "a wrong user, password, database or option in the store's URL, or the server's settings"
            cause, run = "" if store else cause, "headrace doctor"
        case errors.Unavailable():
            away = "the store is unreachable, locked by another program, or its directory is not writable"
            server = "the server is not running, not reachable from here, or cannot serve right now"
            cause, run = server if store else away, "headrace doctor"
        case errors.SchemaMismatch():
            cause, run = _NOT_OURS[store]
        case _:
            cause, run = "the store's bytes are damaged", "headrace doctor; then restore a backup"
    return Problem(UNAVAILABLE if isinstance(error, errors.Unavailable) else FAILED, text, cause=cause, run=run)


def _depths(error: QueueFull) -> str:
    """The commands that show the depths of what is full, or may be."""
    scopes = [shlex.quote(name) if name else "--store" for name in error.full or (error.queue, "")]
    return " and ".join(f"headrace queue limit {scope}" for scope in scopes)


def _store(text: str) -> str:
    """The kind of server that a message is about: ``valkey`` or ``postgres``; empty if none."""
    found = _SCHEME.match(text)
    if found is None:
        return ""
    return "postgres" if found[1] == "postgres" else "valkey"


def report(error: BaseException, *, debug: bool) -> int:
    """Print an error; returns its exit code."""
    from headrace.errors import HeadraceError

    if debug and not isinstance(error, click.Abort | click.UsageError):
        print(without_secrets("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    shown = _alone(error)
    if isinstance(shown, click.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    if isinstance(shown, HeadraceError):
        shown = explain(shown)
    if isinstance(shown, Problem):
        shown.show()
        return shown.code
    if isinstance(shown, click.ClickException):
        said = shown.format_message()
        shown.format_message = lambda: one_line(said)  # type: ignore[method-assign]
        shown.show()
        return shown.exit_code
    raise error


def _alone(error: BaseException) -> BaseException:
    """The error behind an exception group: concurrent calls fail as a group, often all for one reason."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    inner = [_alone(one) for one in error.exceptions]
    return inner[0] if len({(type(one), str(one)) for one in inner}) == 1 else error
