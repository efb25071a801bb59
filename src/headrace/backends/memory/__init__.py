"""The store in this process's memory: no durability, and the model that the other stores are held against."""

from headrace.backends.memory.backend import MemoryBackend

__all__ = ["MemoryBackend"]
