"""Every test that takes ``store`` runs on every store there is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.facades.harness import STORES, Store


@pytest.fixture(params=STORES)
async def store(request: Any, tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(request.param, tmp_path)
    yield store
    await store.close()


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[Store]:
    """For what has nothing to do with the store."""
    store = Store("memory", tmp_path)
    yield store
    await store.close()
