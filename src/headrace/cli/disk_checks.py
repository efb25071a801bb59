"""The checks of ``headrace doctor`` for a store in a file."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from headrace.cli.doctor_checks import Finding

_LITTLE, _TOO_LITTLE = 1 << 30, 64 << 20
_REMOTE = ("nfs", "cifs", "smb", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs")
_FLEETING = ("tmpfs", "ramfs")


def sqlite_library() -> Finding:
    """The SQLite inside apsw, and whether its write-ahead log can be trusted."""
    import apsw

    from headrace.backends.sqlite.schema import wal_is_safe

    version = apsw.sqlite_lib_version()
    if wal_is_safe(version):
        return Finding("ok", "sqlite", f"{version} (apsw): its write-ahead log is safe")
    text = f"{version} (apsw) can lose data when its write-ahead log is reset, so the log is not used"
    return Finding("warn", "sqlite", text, "for speed, not for safety: pip install -U apsw")


def journal(path: Path) -> Finding:
    """How the file is written."""
    import apsw

    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        mode = str(connection.pragma("journal_mode"))
    finally:
        connection.close()
    if mode == "wal":
        return Finding("ok", "journal", "mode wal: readers and the writer do not wait for each other")
    return Finding("warn", "journal", f"mode {mode}: safe, and slower than wal", "see the lines on sqlite and disk")


def privacy(path: Path) -> list[Finding]:
    """Whether other users of this machine can read the store."""
    from headrace.backends.sqlite.files import open_to_others

    if os.name == "nt":
        return []
    found = open_to_others(str(path.resolve()))
    if not found:
        return [Finding("ok", "privacy", "only the owner of the files may read them")]
    text = f"other users can open {', '.join(found)}: they can read all payloads and block all writes"
    return [Finding("warn", "privacy", text, f"unless this is intended: chmod go= {' '.join(map(shlex.quote, found))}")]


def place(path: Path) -> list[Finding]:
    """The directory of the file: is it writable, is it a real disk, is there space?"""
    directory = path.resolve().parent
    if not directory.is_dir():
        return [Finding("fail", "disk", f"there is no directory {directory}", f"mkdir -p {directory}")]
    if not os.access(directory, os.W_OK):
        return [Finding("fail", "disk", f"{directory} is not writable by this user", f"chown or chmod {directory}")]
    return [*_filesystem(directory), _room(directory)]


def _room(directory: Path) -> Finding:
    free = shutil.disk_usage(directory).free
    text = f"{free / (1 << 30):.1f} GiB free at {directory}"
    if free < _TOO_LITTLE:
        return Finding("fail", "disk", text, "free some space: a full disk stops every enqueue")
    return Finding("warn", "disk", text, "free some space soon") if free < _LITTLE else Finding("ok", "disk", text)


def _filesystem(directory: Path) -> list[Finding]:
    kind = _kind(directory)
    if kind.startswith(_REMOTE):
        advice = "put the store on a local disk: locks over a network cannot be trusted"
        return [Finding("fail", "disk", f"{directory} is on a network file system ({kind})", advice)]
    if kind in _FLEETING:
        return [
            Finding(
                "warn", "disk", f"{directory} is in memory ({kind})", "nothing in it survives a restart of the machine"
            )
        ]
    return []


def _kind(directory: Path) -> str:
    """The type of the file system; empty if the platform does not say."""
    mounts = Path("/proc/self/mounts")
    if not mounts.is_file():
        return ""
    best = ("", "")
    for line in mounts.read_text("utf-8", "replace").splitlines():
        _, point, kind, *_ = line.split(" ")
        if directory.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]
