"""SQLite's errors as Headrace's, with what was expected, what came, and what to do."""

from __future__ import annotations

import errno

import apsw

from headrace import errors

_NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def translate(error: apsw.Error, path: str, system_errno: int = 0) -> errors.HeadraceError:
    """The error to raise instead. ``system_errno`` is the connection's, read before anything else was tried."""
    said = f"SQLite said: {error}"
    if isinstance(error, apsw.FullError) or (isinstance(error, apsw.IOError) and system_errno in _NO_ROOM):
        return errors.StoreFull(
            f"{path} cannot grow: the disk, the quota or the file size limit is used up, and nothing was written. "
            f"Free some space: work goes on by itself. ({said})"
        )
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return errors.Unavailable(
            f"{path} stayed locked by another connection for as long as we waited. Look for a program that keeps a "
            f"transaction open on it. ({said})"
        )
    if isinstance(error, apsw.CantOpenError):
        return errors.Unavailable(
            f"{path} cannot be opened: expected a file that this user may read and write, in a directory that "
            f"exists and that this user may write to. ({said})"
        )
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.AuthError):
        return errors.Unavailable(
            f"{path} cannot be written to: make the file, its directory and its volume writable. ({said})"
        )
    if isinstance(error, apsw.NotADBError):
        return errors.SchemaMismatch(
            f"{path} is not a SQLite database: expected a Headrace store or no file at all. Choose another path, "
            f"or move the file away. ({said})"
        )
    if isinstance(error, apsw.CorruptError):
        return errors.Corrupt(
            f"{path} is damaged: SQLite's check of its pages failed. Stop all workers, copy the file, and restore a "
            f"backup or use `.recover` of the sqlite3 shell. ({said})"
        )
    if isinstance(error, apsw.TooBigError):
        return errors.PayloadTooLarge(f"a cell is bigger than SQLite takes; nothing was stored. ({said})")
    if isinstance(error, apsw.ConstraintError | apsw.MismatchError | apsw.RangeError):
        return errors.Rejected(f"{path} does not take this: it does not fit the tables; nothing was stored. ({said})")
    if isinstance(error, apsw.SQLError | apsw.SchemaChangeError):
        return errors.SchemaMismatch(
            f"{path} does not have the tables that this version of Headrace made: something else changed its "
            f"schema. ({said})"
        )
    if isinstance(error, apsw.IOError | apsw.NoMemError | apsw.ProtocolError | apsw.InterruptError):
        return errors.Unavailable(f"{path} cannot be read or written just now; trying again may help. ({said})")
    return errors.BackendError(
        f"{path}: SQLite refused a statement, which is a bug in Headrace: please report it. ({said})"
    )


def read_only(path: str) -> errors.ConfigError:
    """The file is there, but cannot be written to."""
    return errors.ConfigError(
        f"{path} is read-only for this user: a job store must be writable. Change the permissions of the file and its "
        f"directory, or run as their owner."
    )
