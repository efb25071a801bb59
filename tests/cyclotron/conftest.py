"""Cyclotron's interface on every store of this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import Client, Settings
from headrace.seam.protocol import Backend
from tests.worker.conftest import FAST, STORES, blank

MakeClient = Callable[..., Client]


@pytest.fixture(params=[*STORES, "streams"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return blank(request.param, tmp_path)


@pytest.fixture
def make_client(store: Backend) -> MakeClient:
    """Clients of the same store."""

    def make(backend: Backend | None = None, **worker: Any) -> Client:
        given = {"worker": FAST | {"name": "random", "lease": "30s"} | worker, "patience": "20s"}
        return Client(backend or store.sibling(), Settings.load(given, env={}, toml={}))

    return make


@pytest.fixture
async def client(make_client: MakeClient) -> AsyncIterator[Client]:
    async with make_client() as made:
        yield made
