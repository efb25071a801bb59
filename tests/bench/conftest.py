"""Servers that the benchmark's tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.fleet import Servers


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """In memory, and on any core: nobody takes the time here."""
    memory = Path("/dev/shm")
    with Servers(memory if memory.is_dir() else None, None) as running:
        yield running
