"""Who may see the files of a store: its owner alone, unless the database was there before and says otherwise."""

from __future__ import annotations

import os
import stat

from headrace.errors import ConfigError

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_CLOSE = getattr(os, "O_CLOEXEC", 0)
_OTHERS = 0o077


def make_database(path: str) -> None:
    """An empty file for its owner alone, unless there is one. SQLite gives its ``-wal`` and ``-shm`` the same mode."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _CLOSE, 0o600))
    except OSError:  # it is there, or SQLite tells why it cannot be
        pass


def open_latch(database: str) -> int:
    """The file that a writer locks, with the mode of the database if it is new; -1 where there can be none.
    Who can open it can stop all writes."""
    path = f"{database}-latch"
    try:
        mode = stat.S_IMODE(os.stat(database).st_mode) & 0o666
        fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | _CLOSE, mode)
        os.chmod(path if os.chmod not in os.supports_fd else fd, mode)
    except FileExistsError:
        try:
            fd = os.open(path, os.O_RDONLY | _NO_FOLLOW | _CLOSE)
        except OSError:
            return -1
    except OSError:
        return -1
    return fd


def folder_mode(database: str) -> int:
    """Of the directory beside a database: for users that may write to the database."""
    return _for_writers(database, 0o700, 0o070, 0o007)


def socket_mode(database: str) -> int:
    """Of a socket in it."""
    return _for_writers(database, 0o600, 0o060, 0o006)


def _for_writers(database: str, owner: int, group: int, others: int) -> int:
    try:
        mode = os.stat(database).st_mode
    except OSError:
        return owner
    return owner | (group if mode & stat.S_IWGRP else 0) | (others if mode & stat.S_IWOTH else 0)


def refuse_planted_link(path: str) -> None:
    """Raise if the name of the database is a link that another user has made: it may lead anywhere."""
    try:
        found = os.lstat(path)
    except OSError:
        return
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"{path} is a symbolic link that another user (uid {found.st_uid}) has made: expected a file, or a link of "
            f"one's own. Remove it, or choose a directory that only this user may write to"
        )


def open_to_others(database: str) -> list[str]:
    """Of the files of a store, those that the group or others may read or write."""
    files = [f"{database}{suffix}" for suffix in ("", "-wal", "-shm", "-latch")]
    return [file for file in files if os.path.exists(file) and os.stat(file).st_mode & _OTHERS]
