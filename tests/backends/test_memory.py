"""The memory backend keeps the contract."""

from pathlib import Path

from headrace.backends.memory import MemoryBackend
from headrace.testing.conformance import BackendConformance


class TestMemory(BackendConformance):
    capabilities = ("hints", "turn")

    def connect(self, place: Path) -> MemoryBackend:
        return MemoryBackend()
