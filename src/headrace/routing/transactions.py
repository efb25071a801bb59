"""Transactions, where the store that they are in may change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.errors import ConfigError
from headrace.routing.view import Look
from headrace.seam.protocol import AsyncJoined, Joined, Transactions


class RoutedTransactions:
    """In the store that is home: one of our own in the one that is home when it begins; one of the caller's in the one
    that was home lately, which refuses new jobs if it is not any more."""

    def __init__(self, look: Look, lately: Transactions) -> None:
        self._look = look
        self._lately = lately

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncJoined]:
        tx = (await self._look()).home.tx
        if tx is None:
            raise ConfigError("expected a store with transactions, PostgreSQL; this one has moved to one without")
        async with tx.begin() as joined:
            yield joined

    def join(self, connection: object) -> Joined | AsyncJoined:
        return self._lately.join(connection)
