"""What a connection says and hears without a cursor, on either kind of connection of the driver."""

from __future__ import annotations

import select
from collections.abc import Sequence
from functools import cached_property

from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

_COPYING = (ExecStatus.COPY_IN, ExecStatus.COPY_OUT, ExecStatus.COPY_BOTH)


class Spoken:
    """A connection that sends statements of its own."""

    pgconn: PGconn
    prepare_threshold: int | None
    born = 0.0
    """When it was made."""

    @cached_property
    def _said(self) -> set[bytes]:
        """Statements that the server has prepared for ``say``; each is its own name."""
        return set()

    @cached_property
    def _asked(self) -> dict[bytes, bytes]:
        """The names of statements that the server has prepared for ``ask``."""
        return {}

    def ask(self, statement: bytes, params: Sequence[bytes | None]) -> PQGen[bytes | None]:
        """Send a statement with parameters that are packed already, and read its one value, unpacked. It costs the
        client a third of what a cursor does."""
        formats = (1,) * len(params)
        if self.prepare_threshold is None:
            self.pgconn.send_query_params(statement, params, None, formats, 1)
        else:
            name = self._asked.get(statement)
            if name is None:
                name = b"headrace_%d" % len(self._asked)
                self.pgconn.send_prepare(name, statement)
                yield from _answered(self.pgconn)
                self._asked[statement] = name
            self.pgconn.send_query_prepared(name, params, formats, 1)
        [result] = yield from _answered(self.pgconn)
        return result.get_value(0, 0)

    def say(self, statement: bytes) -> PQGen[None]:
        """Send a statement without parameters whose answer is not worth reading. It costs the client half of what a
        cursor does. Prepared, it costs the server a third."""
        if self.prepare_threshold is None:
            self.pgconn.send_query(statement)
        else:
            if statement not in self._said:
                self.pgconn.send_prepare(statement, statement)
                yield from _answered(self.pgconn)
                self._said.add(statement)
            self.pgconn.send_query_prepared(statement, [])
        yield from _answered(self.pgconn)

    def discard(self) -> PQGen[None]:
        """Read the rest of the answer."""
        while True:
            self.pgconn.consume_input()
            while not self.pgconn.is_busy():
                result = self.pgconn.get_result()
                if result is None or result.status in _COPYING:
                    return
            yield waiting.WAIT_R

    def end(self) -> None:
        """Hang up, without a word to the server."""
        self.pgconn.finish()

    @property
    def through(self) -> bool:
        """Whether the last call is complete, so that another one can follow."""
        return self.pgconn.transaction_status == TransactionStatus.IDLE

    @property
    def silent(self) -> bool:
        """Whether the server has sent nothing unasked. If it has, it has hung up."""
        unasked = select.poll()
        unasked.register(self.pgconn.socket, select.POLLIN)
        return not unasked.poll(0)


def _answered(pgconn: PGconn) -> PQGen[list[PGresult]]:
    """Wait for an answer. Raises the error that it brings."""
    results: list[PGresult] = yield from execute(pgconn)
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            raise error_from_result(result)
    return results
