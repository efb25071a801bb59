"""A pooler in transaction mode, as hard on its clients as it may be."""

from __future__ import annotations

import asyncio
import re
import struct
from collections import deque

from servers.process import free_port
from servers.thread import LoopThread

_SSL, _GSS, _CANCEL = 80_877_103, 80_877_104, 80_877_102
_COPYING = (b"d", b"c", b"f")
"""Messages of a COPY, which go with the statement that began it."""
_REPORTED = {
    b"server_version", b"server_encoding", b"client_encoding", b"DateStyle", b"TimeZone", b"integer_datetimes",
    b"standard_conforming_strings", b"application_name",
}  # fmt: skip
"""Settings that it tells its clients of; common poolers know no others."""
_SESSION_STATE = re.compile(
    r"""^\s*(LISTEN|UNLISTEN|RESET|PREPARE|DEALLOCATE|DISCARD|LOAD|CREATE\s+TEMP(ORARY)?|DECLARE\s.*WITH\s+HOLD)\b
    |^\s*SET\s+(?!LOCAL\b|TRANSACTION\b)
    |\bpg_(try_)?advisory_(un)?lock(_shared|_all)?\b
    |\bset_config\s*\([^()]*,\s*false\s*\)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_GIVEN_BACK = re.compile(r"pg_try_advisory_lock\(([^()]*)\) AND pg_advisory_unlock\(\1\)")
"""A lock that is let go where it was taken."""
_RESIDUE = b"""
SELECT 'prepared statement ' || name FROM pg_prepared_statements
UNION ALL SELECT 'LISTEN ' || c FROM pg_listening_channels() AS c
UNION ALL SELECT 'cursor ' || name FROM pg_cursors WHERE is_holdable
UNION ALL SELECT 'setting ' || name FROM pg_settings WHERE source = 'session'
UNION ALL SELECT 'advisory lock ' || objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
UNION ALL SELECT 'temporary table ' || relname FROM pg_class WHERE relnamespace = pg_my_temp_schema()
"""


class Pooler:
    """Many clients on few sessions of one server.

    A session is lent until the server says that it is in no transaction, and then it goes to the end of the line: two
    transactions of one client never share a session while there are two. Nothing is reset in between, so whatever a
    client leaves in a session is lost to itself and found by another.
    """

    def __init__(self, upstream: int, *, size: int = 2, user: str = "headrace", database: str = "postgres") -> None:
        self.port = free_port()
        self.session_state: list[str] = []
        """Statements that need a session of their own."""
        self.loans = 0
        self.clients = 0
        """Connected now."""
        self._upstream = upstream
        self._user, self._database = user, database
        self._free: deque[_Session] = deque()
        self._waiting: deque[asyncio.Future[_Session]] = deque()
        self._greeting: list[bytes] = []
        self._thread = LoopThread("pooler")
        self._thread.run(self._start(size))

    def url(self) -> str:
        """Where it is."""
        return f"postgresql://{self._user}@127.0.0.1:{self.port}/{self._database}"

    def close(self) -> None:
        """Disconnect everybody."""
        self._thread.run(self._stop())
        self._thread.close()

    def residue(self) -> list[str]:
        """What clients have left behind in the sessions."""
        return self._thread.run(self._inspect())

    async def _start(self, size: int) -> None:
        for _ in range(size):
            self._free.append(await self._open())
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _stop(self) -> None:
        self._server.close()
        for session in self._free:
            session.close()

    async def _inspect(self) -> list[str]:
        found: list[str] = []
        for session in list(self._free):
            found += await session.query(_RESIDUE)
        return found

    # -- sessions of the server

    async def _open(self) -> _Session:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        names = (b"user", self._user.encode(), b"database", self._database.encode())
        writer.write(_packet(b"", struct.pack("!i", 196_608) + b"\0".join(names) + b"\0\0"))
        self._greeting = []
        while True:
            kind, body = await _message(reader)
            if kind == b"S" and body.split(b"\0")[0] in _REPORTED:
                self._greeting.append(_packet(kind, body))
            if kind == b"E":
                raise RuntimeError(f"the server refuses the pooler: {body!r}")
            if kind == b"Z":
                return _Session(reader, writer)

    async def _lend(self) -> _Session:
        self.loans += 1
        if self._free:
            return self._free.popleft()
        waiting: asyncio.Future[_Session] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        return await waiting

    def _take_back(self, session: _Session) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(session)
                return
        self._free.append(session)

    # -- clients

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(reader, writer)
        self.clients += 1
        try:
            async with asyncio.TaskGroup() as group:
                if await self._greet(reader, writer):
                    await self._listen(client, group)
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.clients -= 1
            writer.close()
            if client.session is not None:  # it has left in the middle: what it began must end with it
                client.session.close()
                self._take_back(await self._open())

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        while True:
            body = await reader.readexactly(int.from_bytes(await reader.readexactly(4)) - 4)
            match int.from_bytes(body[:4]):
                case code if code in (_SSL, _GSS):
                    writer.write(b"N")
                case code if code == _CANCEL:
                    return False
                case _:
                    break
        key = _packet(b"K", struct.pack("!ii", 1, 1))
        writer.write(_packet(b"R", struct.pack("!i", 0)) + b"".join(self._greeting) + key + _packet(b"Z", b"I"))
        return True

    async def _listen(self, client: _Client, group: asyncio.TaskGroup) -> None:
        while True:
            kind, body = await _message(client.reader)
            if kind == b"X":
                return
            if client.session is None:
                client.session = await self._lend()
                group.create_task(self._answer(client, client.session))
            self._note(kind, body)
            session = client.session
            session.ask(kind, body)
            await session.writer.drain()

    async def _answer(self, client: _Client, session: _Session) -> None:
        await session.answer(client.writer)
        client.session = None
        self._take_back(session)

    def _note(self, kind: bytes, body: bytes) -> None:
        if kind == b"Q":
            text = body
        elif kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            if name:
                self.session_state.append(f"prepared statement {name.decode()}")
        else:
            return
        statement = text.rstrip(b"\0").decode()
        if _SESSION_STATE.search(_GIVEN_BACK.sub("", statement)):
            self.session_state.append(statement[:200])


class _Client:
    """One client, and the session that it has been lent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.session: _Session | None = None


class _Session:
    """One session of the server, and how far it is with what it was asked."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._unanswered = 0
        self._unsynced = False

    def ask(self, kind: bytes, body: bytes) -> None:
        """Pass on a client's message."""
        if kind not in _COPYING:
            self._unsynced = kind not in (b"Q", b"S", b"F")
            self._unanswered += not self._unsynced
        self.writer.write(_packet(kind, body))

    async def answer(self, client: asyncio.StreamWriter) -> None:
        """Pass on the replies, until the client is in no transaction."""
        while True:
            kind, body = await _message(self._reader)
            client.write(_packet(kind, body))
            if kind == b"Z":
                self._unanswered -= 1
                if body == b"I" and not self._unanswered and not self._unsynced:
                    return
                await client.drain()

    async def query(self, statement: bytes) -> list[str]:
        """The first column of a question of the pooler's own."""
        self.writer.write(_packet(b"Q", statement + b"\0"))
        found: list[str] = []
        while True:
            kind, body = await _message(self._reader)
            if kind == b"D":
                found.append(body[6:].decode())
            elif kind == b"E":
                raise RuntimeError(f"the server does not tell what is left in a session: {body!r}")
            elif kind == b"Z":
                return found

    def close(self) -> None:
        self.writer.close()


def _packet(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], await reader.readexactly(int.from_bytes(head[1:]) - 4)
