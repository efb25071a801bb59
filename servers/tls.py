"""TLS in front of a server that has none."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

_CHUNK = 65_536
_PATIENCE = 10.0


class TlsFront:
    """Takes TLS connections with a certificate, from clients that show one of ``clients`` if that is given, and passes
    what they say on to a server of the loopback in the clear.

    A thread for each, on plain sockets: unlike an event loop's, these tell clients why a handshake failed.
    """

    def __init__(self, upstream: int, certificate: Path, key: Path, *, clients: Path | None = None) -> None:
        self.names: list[str] = []
        """Who the clients said they are, by their certificates."""
        self._upstream = upstream
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        if clients is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(clients)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """Hang up."""
        for one in (self._door, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_PATIENCE)

    def _accept(self) -> None:
        with self._door, suppress(OSError):
            while True:
                raw, _ = self._door.accept()
                self._open.add(raw)
                thread = threading.Thread(target=self._serve, args=(raw,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, raw: socket.socket) -> None:
        try:
            with raw, suppress(OSError):
                raw.settimeout(_PATIENCE)
                with self._context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False) as client:
                    self._shake_hands(client)
                    with socket.create_connection(("127.0.0.1", self._upstream), _PATIENCE) as server:
                        self._open |= {client, server}
                        _pump(client, server)
                        self._open -= {client, server}
        finally:
            self._open.discard(raw)

    def _shake_hands(self, client: ssl.SSLSocket) -> None:
        try:
            client.do_handshake()
        except ssl.SSLError:
            client.shutdown(socket.SHUT_WR)
            while client.recv(_CHUNK):  # closed with bytes unread, the connection would be reset, and no reason heard
                pass
            raise
        shown = client.getpeercert() or {}
        subject: tuple[tuple[tuple[str, str], ...], ...] = shown.get("subject", ())  # type: ignore[assignment]
        self.names += [value for part in subject for name, value in part if name == "commonName"]


def _pump(client: ssl.SSLSocket, server: socket.socket) -> None:
    """Both ways, until one of them hangs up."""
    while True:
        ready = [client] if client.pending() else select.select([client, server], [], [])[0]
        for one in ready:
            data = one.recv(_CHUNK)
            if not data:
                return
            (server if one is client else client).sendall(data)
