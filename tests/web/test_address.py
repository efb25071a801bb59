"""The socket of the server."""

from __future__ import annotations

import socket

from headrace.web.address import Address


def test_answers_are_not_held_back() -> None:
    """Headers and body are two packets: the second must not wait until the first is acknowledged, which takes 40 ms.
    Event loops see to that only for sockets that name their protocol, and those of a listener do not."""
    with Address("127.0.0.1", 0).listen() as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
