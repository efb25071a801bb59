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
"""How a message begins that names a store on a server."""


class Problem(Exception):
    """An error as the person gets to see it."""

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


def explain(error: Exception) -> Problem:
    """The problem behind an error of the library."""
    from headrace import errors

    text = str(error)
    store = _store(text)
    match error:
        case errors.StoreFull() if store == "valkey":
            return Problem(
                UNAVAILABLE,
                text,
                cause="the memory that the server may use is full, not a disk",
                run="headrace dead purge, or a worker with HEADRACE_RETENTION__COMPLETED__COUNT=1000 for a while, or "
                "CONFIG SET maxmemory on the server",
            )
        case errors.StoreFull():
            return Problem(UNAVAILABLE, text, cause="the disk is full", run="headrace dead purge, or free some space")
        case errors.Unavailable() if isinstance(error, errors.ConfigError):
            cause = "the user, the password, the database or an option in the store's URL, or the server's settings"
            return Problem(UNAVAILABLE, text, cause="" if store else cause, run="headrace doctor")
        case errors.Unavailable():
            away = "the store is away, locked by another program, or its directory is not writable"
            server = "the server does not run, is not reachable from here, or cannot serve for the moment"
            return Problem(UNAVAILABLE, text, cause=server if store else away, run="headrace doctor")
        case errors.SchemaMismatch() if store == "valkey":
            return Problem(
                FAILED,
                text,
                cause="another release made the store, or the keys are those of another program",
                run="the same command with the release that made it, or with another ?prefix=NAME in the URL",
            )
        case errors.SchemaMismatch() if store == "postgres":
            return Problem(
                FAILED,
                text,
                cause="the store is not Headrace's, or another version made it",
                run="headrace migrate status; or give the right store with --url",
            )
        case errors.SchemaMismatch():
            return Problem(
                FAILED,
                text,
                cause="the file is not Headrace's, or another version made it",
                run="the same command with --url sqlite:///path/to/file.db, where the right one is",
            )
        case errors.Corrupt():
            return Problem(
                FAILED, text, cause="the store's bytes are damaged", run="headrace doctor; then restore a backup"
            )
        case errors.UnknownTask():
            return Problem(NOT_FOUND, text, cause="a typing error, or the task is in another app")
        case errors.InvalidJob() | errors.PayloadTooLarge() | errors.CodecError():
            return Problem(USAGE, text, cause="what was given does not fit; nothing was stored")
        case errors.ConfigError() if isinstance(error.__cause__, ImportError):
            return Problem(USAGE, text)
        case errors.ConfigError():
            cause = "an option, a HEADRACE_* variable, headrace.toml or the app's own settings"
            return Problem(USAGE, text, cause="" if store else cause, run="headrace doctor")
        case errors.JobNotFound():
            return Problem(NOT_FOUND, text, run="headrace job list")
        case errors.ScheduleNotFound():
            return Problem(NOT_FOUND, text, run="headrace schedule list")
        case errors.QueueFull():
            return Problem(
                UNAVAILABLE,
                text,
                cause="more comes in than workers get done, or none of them works",
                run=f"{_depths(error)} for the depth; headrace health for who works",
            )
        case errors.WaitTimeout():
            return Problem(FAILED, text, cause="no worker took it yet, or it takes longer", run="headrace health")
        case errors.JobFailed():
            return Problem(FAILED, text, run=f"headrace dead show {error.job_id}")
        case _:
            return Problem(FAILED, text)


def _depths(error: QueueFull) -> str:
    """The commands that show the depths of what is full, or may be."""
    scopes = [shlex.quote(name) if name else "--store" for name in error.full or (error.queue, "")]
    return " and ".join(f"headrace queue limit {scope}" for scope in scopes)


def _store(text: str) -> str:
    """What kind of server a message is about: ``valkey`` or ``postgres``; empty if of none."""
    found = _SCHEME.match(text)
    if found is None:
        return ""
    return "postgres" if found[1] == "postgres" else "valkey"


def report(error: BaseException, *, debug: bool) -> int:
    """Tell the person about an error; the exit code for it."""
    from headrace.errors import HeadraceError

    if debug and not isinstance(error, click.Abort | click.UsageError):
        print(without_secrets("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    told = _alone(error)
    if isinstance(told, click.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    if isinstance(told, HeadraceError):
        told = explain(told)
    if isinstance(told, Problem):
        told.show()
        return told.code
    if isinstance(told, click.ClickException):
        said = told.format_message()
        told.format_message = lambda: one_line(said)  # type: ignore[method-assign]
        told.show()
        return told.exit_code
    raise error


def _alone(error: BaseException) -> BaseException:
    """The one error in a group: what runs side by side fails as a group, several of it maybe for the same reason."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    inner = [_alone(one) for one in error.exceptions]
    return inner[0] if len({(type(one), str(one)) for one in inner}) == 1 else error
