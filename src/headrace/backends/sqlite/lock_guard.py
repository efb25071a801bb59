"""Two ways to lose SQLite's locks without a word, and what stops them here.

POSIX locks belong to a process, not to a connection. When a second SQLite library (the one inside the standard
library's ``sqlite3``) opens and closes a file that apsw has open in the same process, the kernel drops apsw's locks,
and another process may write over ours. So opening such a file through ``sqlite3`` raises here, by way of an audit
hook. A connection that ``sqlite3`` had open before cannot be seen: give the store a file of its own.

After ``fork`` the child's copy of SQLite believes that it holds the parent's locks, and it does not. So the child
may use neither the parent's instances nor new ones on the same files: open after the fork, or spawn.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from typing import Any
from urllib.parse import unquote, urlsplit
from weakref import WeakSet

from headrace.errors import ConfigError, Unavailable
from headrace.seam.forks import in_child

FileId = tuple[int, int]
"""Device and inode."""


class Watched:
    """What must be let go of in a forked child."""

    def abandon(self) -> None:
        """This is the child now: close what is shared with the parent by number, touch nothing else."""


_lock = threading.Lock()
_open: Counter[FileId] = Counter()
_inherited: set[FileId] = set()
_watched: WeakSet[Watched] = WeakSet()
_left_behind: list[Any] = []
_installed = False


def identify(path: str) -> FileId:
    """What a file is, whatever it is called."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


def check(path: str) -> None:
    """Raise if this process must not open the file."""
    if _inherited and os.path.exists(path) and identify(path) in _inherited:
        raise ConfigError(
            f"{path} was open in the parent process when this one was forked, so SQLite's locks on it cannot work "
            f"here. Open the store after the fork (uWSGI: lazy-apps = true), or start processes with the spawn method."
        )


def enter(path: str) -> FileId:
    """From now on, until ``leave``, the file is open through apsw in this process."""
    global _installed
    with _lock:
        if not _installed:
            sys.addaudithook(_audit)
            in_child(_forked)
            _installed = True
        file = identify(path)
        _open[file] += 1
        return file


def leave(file: FileId) -> None:
    """One connection to the file less."""
    with _lock:
        _open[file] -= 1
        if _open[file] <= 0:
            del _open[file]


def check_in_place(path: str, file: FileId) -> None:
    """Raise if the file that we write to is no longer what its name leads to: nobody else would see our jobs."""
    try:
        moved = identify(path) != file
    except OSError:
        moved = True
    if moved:
        raise Unavailable(
            f"{path} was moved, deleted or replaced while it was open; nothing was written. Put the file back, or "
            f"restart this process to begin with the new one."
        )


def watch(instance: Watched) -> None:
    """Tell the instance when it finds itself in a forked child."""
    _watched.add(instance)


def keep(*things: Any) -> None:
    """Never let these be collected: closing them here would touch what belongs to the parent."""
    _left_behind.extend(things)


def _forked() -> None:
    global _lock
    _lock = threading.Lock()
    _inherited.update(_open)
    _open.clear()
    for instance in list(_watched):
        instance.abandon()
    _watched.clear()


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event != "sqlite3.connect" or not _open:
        return
    path = _path(args[0])
    try:
        ours = path is not None and identify(path) in _open
    except (OSError, ValueError):
        return
    if ours:
        raise ConfigError(
            f"{path} is open in this process as a Headrace store, and the sqlite3 module would drop its locks: jobs "
            f"could be lost. Use another file, another process, or apsw."
        )


def _path(database: Any) -> str | None:
    """The file that ``sqlite3.connect`` is about to open."""
    name = os.fsdecode(database) if isinstance(database, str | bytes | os.PathLike) else ""
    if name.startswith("file:"):
        name = unquote(urlsplit(name).path)
    return None if name in ("", ":memory:") else name
