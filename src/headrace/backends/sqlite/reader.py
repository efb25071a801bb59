"""The thread that reads, on a connection of its own, so that reads never wait for writes."""

from __future__ import annotations

import apsw

from headrace.backends.sqlite import lock_guard
from headrace.backends.sqlite.connection_thread import Command, ConnectionThread
from headrace.backends.sqlite.schema import connect_reader
from headrace.backends.sqlite.transaction import Session


class Reader(ConnectionThread[Session]):
    """Serves one command after the other, each on one snapshot of the store."""

    _connection: apsw.Connection | None = None

    def _load(self) -> int:
        return 8

    def abandon(self) -> None:
        """This is a forked child: the connection is the parent's."""
        lock_guard.keep(self._connection)

    def _open(self) -> None:
        self._connection = connect_reader(self.path)
        self._session = Session(self._connection)

    def _serve(self, commands: list[Command[Session]]) -> None:
        assert self._connection is not None
        for command in commands:
            if command.abandoned:
                continue
            try:
                self._connection.execute("BEGIN")
                command.result = command.work(self._session, self._instant(command))
            except Exception as error:
                command.error = self._translated(error, self._connection)
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
        self._answer(commands)

    def _shut(self) -> None:
        assert self._connection is not None
        self._connection.close(True)
