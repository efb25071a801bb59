"""Hints between processes: a datagram socket per listener, in a directory beside the database."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import socket
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from zlib import crc32

from headrace.backends.mailbox import Mailbox
from headrace.backends.sqlite import files
from headrace.seam.records import Hint, JobId

available = hasattr(socket, "AF_UNIX") and hasattr(socket, "SOCK_DGRAM")
"""Whether this system has such sockets."""

_LONGEST = 100
"""Bytes that the address of such a socket may have everywhere."""
_UNSETTLED = 100_000_000
"""Nanoseconds within which a second change of a directory may not show in its timestamp."""
_NAME = re.compile("[0-9a-f]{16}-[0-9a-f]{8}")
"""A mask of topics, and something of its own."""
_IDS_AT_ONCE = 1_000
_ID = 16


class SqliteHints:
    """Sends the hints of a transaction to listeners, and listens.

    The name of a listener's socket begins with a mask of its topics, so that a sender wakes few of them for nothing.
    """

    def __init__(self, database: str) -> None:
        self._database = database
        self._directory = directory_of(database)
        self._listeners: list[tuple[int, str]] = []
        self._listed_at = -1
        self._sender = Sender()
        self._own: set[_Listener] = set()

    @asynccontextmanager
    async def listen(self, topics: Collection[str]) -> AsyncIterator[AsyncIterator[Hint]]:
        """Subscribe; see :class:`headrace.seam.protocol.Hints`."""
        mailbox = Mailbox()
        listener = _Listener(self._database, self._directory, frozenset(topics), mailbox)
        self._own.add(listener)
        try:
            yield aiter(mailbox)
        finally:
            self._own.discard(listener)
            listener.close()

    def send(self, hints: Mapping[str, Sequence[JobId]]) -> None:
        """Send hints to the listeners; called on the writer's thread."""
        if not hints:
            return
        listeners = self._look()
        for topic, ids in hints.items() if listeners else ():
            bit = _bit(topic)
            messages = [_encode(topic, ids[at : at + _IDS_AT_ONCE]) for at in range(0, len(ids) or 1, _IDS_AT_ONCE)]
            for mask, address in listeners:
                if mask & bit:
                    self._sender.post(address, *messages)

    def close(self) -> None:
        """Stop listening and sending. What dead processes left is removed, and the directory with its last socket."""
        for listener in list(self._own):
            listener.close()
        self._own.clear()
        for _, address in self._look():
            self._sender.post(address, b"")
        self._sender.close()
        try:
            os.rmdir(self._directory)
        except OSError:
            pass

    def abandon(self) -> None:
        """This is a forked child: the sockets are the parent's."""
        for listener in self._own:
            listener.abandon()
        self._sender.close()

    def _look(self) -> list[tuple[int, str]]:
        """The listeners; the directory is read again only when it has changed."""
        try:
            folder = os.stat(self._directory)
            changed = folder.st_mtime_ns
            if not is_trusted(self._directory, folder):
                return []
            if changed != self._listed_at:
                found = [name for name in os.listdir(self._directory) if _NAME.fullmatch(name)]
                self._listeners = [(int(name[:16], 16), os.path.join(self._directory, name)) for name in found]
                settled = time.time_ns() - changed > _UNSETTLED
                self._listed_at = changed if settled else -1
        except OSError:
            self._listeners = []
            self._listed_at = -1
        return self._listeners


class Sender:
    """Sends to listeners. It never waits: a listener whose buffer is full has enough to wake up for, and one that is
    gone is removed."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def post(self, address: str, *messages: bytes) -> None:
        """Send a listener these messages, as far as it has room for them."""
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        try:
            for message in messages:
                self._socket.sendto(message, address)
        except ConnectionRefusedError:  # its process is gone
            unlink(address)
        except OSError:  # its buffer is full, or it has just gone: what is sent may get lost
            pass

    def close(self) -> None:
        """Stop for now."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _Listener:
    """One listener's socket."""

    def __init__(self, database: str, directory: str, topics: frozenset[str], mailbox: Mailbox) -> None:
        self._topics = topics
        self._mailbox = mailbox
        self._loop = asyncio.get_running_loop()
        mask = 0
        for topic in topics:
            mask |= _bit(topic)
        self._address = os.path.join(directory, f"{mask:016x}-{os.urandom(4).hex()}")
        self._socket: socket.socket | None = bind(database, directory, self._address)
        if self._socket is not None:
            self._loop.add_reader(self._socket, self._hear)

    def close(self) -> None:
        if self._socket is None:
            return
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        unlink(self._address)

    def abandon(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _hear(self) -> None:
        assert self._socket is not None
        for message in received(self._socket):
            for hint in _decode(message):
                if hint.topic in self._topics:
                    self._mailbox.post(hint)


def directory_of(database: str) -> str:
    """Beside the database; in the directory for temporary files when the address would be too long."""
    beside = f"{database}-wake"
    if len(os.fsencode(beside)) + 1 + 16 + 1 + 8 <= _LONGEST:
        return beside
    name = hashlib.sha256(os.fsencode(database)).hexdigest()[:16]
    return os.path.join(tempfile.gettempdir(), f"headrace-{name}")


def bind(database: str, directory: str, address: str) -> socket.socket | None:
    """A socket at the address; None where there cannot be one, which leaves the listener to its polling."""
    for _ in range(10):  # another process may remove the empty directory in between
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listener.setblocking(False)
        try:
            if not _make(database, directory):
                raise PermissionError
            listener.bind(address)
            os.chmod(address, files.socket_mode(database))
        except OSError as error:
            listener.close()
            if not isinstance(error, FileNotFoundError):
                break
        else:
            return listener
    return None


def received(listener: socket.socket) -> Iterator[bytes]:
    """The messages that have come."""
    while True:
        try:
            yield listener.recv(1 << 16)
        except OSError:
            return


def _make(database: str, directory: str) -> bool:
    """Make the directory; return whether it may be used."""
    try:
        os.makedirs(directory, mode=0o700)
    except FileExistsError:
        pass
    else:
        if not _among_temporary_files(directory):
            os.chmod(directory, files.folder_mode(database))
    return is_trusted(directory, os.lstat(directory))


def is_trusted(directory: str, found: os.stat_result) -> bool:
    """Where anybody may make directories, only one's own is trusted."""
    return stat.S_ISDIR(found.st_mode) and (found.st_uid == os.geteuid() or not _among_temporary_files(directory))


def _among_temporary_files(directory: str) -> bool:
    return os.path.dirname(directory) == tempfile.gettempdir()


def _bit(topic: str) -> int:
    return 1 << (crc32(topic.encode()) & 63)


def _encode(topic: str, ids: Sequence[JobId]) -> bytes:
    return topic.encode() + b"\0" + b"".join(ids)


def _decode(message: bytes) -> list[Hint]:
    """The hints in a message; none if it is not one of ours."""
    head, _, ids = message.partition(b"\0")
    try:
        topic = head.decode()
    except UnicodeDecodeError:
        return []
    if not ids:
        return [Hint(topic)]
    return [Hint(topic, ids[at : at + _ID]) for at in range(0, len(ids), _ID)]


def unlink(address: str) -> None:
    try:
        Path(address).unlink(missing_ok=True)
    except OSError:
        pass
