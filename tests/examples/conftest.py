"""The examples are programs in folders of their own, not packages. None of them leaves this machine."""

import socket
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import anyio
import pytest

sys.path.append(str(Path(__file__).parents[2] / "examples" / "webhooks"))
sys.path.append(str(Path(__file__).parents[2] / "examples" / "discovery"))


@pytest.fixture(autouse=True)
def only_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in the fetcher fails a test, and goes nowhere."""
    connect, resolve = anyio.connect_tcp, socket.getaddrinfo

    async def connect_here(remote_host: str, *given: Any, **options: Any) -> Any:
        assert ip_address(remote_host).is_loopback, f"a connection to {remote_host}"
        return await connect(remote_host, *given, **options)

    def resolve_here(host: Any, *given: Any, **options: Any) -> Any:
        assert host in ("localhost", "127.0.0.1"), f"the system was asked for {host}"
        return resolve(host, *given, **options)

    monkeypatch.setattr(anyio, "connect_tcp", connect_here)
    monkeypatch.setattr(socket, "getaddrinfo", resolve_here)
