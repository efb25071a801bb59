"""How things are printed: rich on a terminal, plain text elsewhere, JSON when asked for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

import click

from headrace.cli.problems import FAILED, USAGE, Problem
from headrace.text import one_line

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2", "bold": "1"}
_LEVELS = {"ok": "green", "warn": "yellow", "fail": "red"}


def clean(text: object) -> str:
    r"""The text on one line, with nothing in it that could move a cursor or forge a line: names are data.

    >>> clean("a\x1b[2Jb\n")
    'a\\x1b[2Jb\\n'
    """
    return one_line(str(text))


def terminal(stream: IO[Any]) -> bool:
    """Whether the stream is a terminal."""
    return stream.isatty()


def paint(text: str, colour: str, stream: IO[Any]) -> str:
    """The text in a colour; plain if the stream is no terminal or NO_COLOR is set."""
    if not colour or os.environ.get("NO_COLOR") or not terminal(stream):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "dead letter"), counted(2_000, "dead letter")
    ('1 dead letter', '2,000 dead letters')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def note(text: str) -> None:
    """Print a remark to stderr; stdout is for the answer itself."""
    print(clean(text), file=sys.stderr)


def discard(stream: IO[Any]) -> None:
    """Discard all that is still written to the stream, because its reader is gone. That includes its buffer, which the
    interpreter would fail to flush at exit."""
    with suppress(OSError, ValueError):  # the stream has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def print_json(data: Any) -> None:
    """One JSON document, in ASCII."""
    import msgspec

    print(json.dumps(msgspec.to_builtins(data, str_keys=True), indent=2))


_AS_JSON = "headrace.json"


def answer_in_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Whether ``--json`` was given is known to the command's context."""
    ctx.meta[_AS_JSON] = value


def answered(data: Any) -> bool:
    """Answer programs, if the command was given ``--json``. False: it was not, and people are to be told."""
    if as_json := bool(click.get_current_context().meta.get(_AS_JSON)):
        print_json(data)
    return as_json


def print_answer(data: Any, plain: str) -> None:
    """The answer for programs or for people."""
    if not answered(data):
        print(plain)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows under headings. Numbers are right-aligned."""
    cells = [[clean(cell) for cell in row] for row in rows]
    right = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(columns))]
    if terminal(sys.stdout):
        _print_rich(columns, cells, right)
        return
    widths = [max(len(line[i]) for line in (columns, *cells)) for i in range(len(columns))]
    for line in ([name.upper() for name in columns], *cells):
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        print("  ".join(padded).rstrip())


def print_list(
    name: str, found: Sequence[Any], columns: Sequence[str], row: Callable[[Any], Sequence[object]], *, empty: str = ""
) -> None:
    """All that was found, under its name for programs, as a table for people; ``empty`` is what they read if there is
    nothing."""
    if answered({name: found}):
        return
    if found or not empty:
        print_table(columns, [row(one) for one in found])
    else:
        note(empty)


def _print_rich(columns: Sequence[str], cells: list[list[str]], right: list[bool]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    gap, widths = fit([*zip(columns, *cells, strict=True)], console.width)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    for name, to_right, width in zip(columns, right, widths, strict=True):
        justify: Any = "right" if to_right else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name == "id", width=width)
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def fit(columns: Sequence[Sequence[str]], width: int) -> tuple[int, list[int | None]]:
    """The gap between columns, and their widths, with which the table fits and lines break between words: dates stay
    whole. Widths are None if that is impossible.

    >>> fit([["at", "2030-01-01 12:00:00"], ["what", "a b"]], 17)
    (1, [12, 4])
    """
    widths = [max(map(len, column)) for column in columns]
    least = [max((len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    gaps = len(columns) - 1
    if sum(widths) + 2 * gaps <= width:
        return 2, [*widths]
    if sum(least) + gaps > width:
        return 1, [None] * len(columns)
    while sum(widths) + gaps > width:
        room = [wide - words for wide, words in zip(widths, least, strict=True)]
        widths[room.index(max(room))] -= 1
    return 1, [*widths]


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Names and values, one pair per line; empty values are left out."""
    shown = [(name, clean(value)) for name, value in fields if value not in (None, "")]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"{paint(name.ljust(width), 'bold', sys.stdout)}  {value}")


def print_level(level: str, text: str, advice: str = "") -> None:
    """A line of a check: ``ok``, ``warn`` or ``fail``, and what to do about it."""
    print(f"{paint(level.ljust(4), _LEVELS[level], sys.stdout)}  {clean(text)}")
    if advice:
        print(f"      {paint('->', 'dim', sys.stdout)} {clean(advice)}")


def print_block(text: str) -> None:
    """Text of several lines, such as a traceback; everything but line ends is escaped."""
    for line in text.rstrip("\n").split("\n"):
        print("  " + clean(line))


def confirm(question: str, *, yes: bool) -> None:
    """Continue only with ``--yes``, or a yes on the terminal."""
    if yes:
        return
    if not terminal(sys.stdin):
        raise Problem(USAGE, f"confirmation needed: {question}", run="the same command with --yes")
    if not click.confirm(clean(question), err=True):
        raise Problem(FAILED, "nothing was changed")


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Any]:
    """A progress bar on stderr, if that is a terminal. Yields a function that adds to the number done."""
    if not terminal(sys.stderr):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(clean(what), total=total)
        yield lambda count: bar.advance(task, count)
