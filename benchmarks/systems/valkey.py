"""What all systems on Valkey have in common: databases that the harness made, and how the server is watched."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from benchmarks.gate import Gate
from benchmarks.systems.served import ServedSystem
from benchmarks.systems.system import Answer, needed

_LOOK = 0.005
_LATE = 0.015
"""A look comes late by so large a share of the time at most; more of them would cost the server more than the drain."""


class ValkeySystem(ServedSystem):
    """A system whose jobs lie in a database of the harness's server."""

    unfinished: ClassVar[str] = ""
    """An expression in Lua: does the store hold a job that waits or is not acknowledged?"""

    def __init__(self, name: str, setting: str) -> None:
        super().__init__(name, "valkey", setting)

    def connect(self, place: str) -> Any:
        import redis

        return redis.Redis.from_url(self.url(place))

    def versions(self, gate: Gate, place: str) -> Answer:
        """What exactly is measured, the server and its allocator included."""
        with self.connect(place) as client:
            version, allocator = client.info("server")["valkey_version"], client.info("memory")["mem_allocator"]
        return super().versions(gate, place) | {"valkey": f"{version} ({allocator})"}

    def watch(self, gate: Gate, place: str, goal: int) -> Answer:
        """The instant at which the server held nothing any more."""
        assert goal == 0
        with self.connect(place) as client:
            needed(self.left(client))
            look = client.register_script(_script(self.condition(client)))
            look()
            gate.ready()
            start = time.monotonic()
            while True:
                while look():
                    time.sleep(max(_LOOK, _LATE * (time.monotonic() - start)))
                at = time.monotonic_ns()
                if not self.left(client):  # a library may take a job from one place before it puts it into another
                    return {"at": at}

    def condition(self, client: Any) -> str:
        """What comes to the same as ``unfinished`` in a drain and costs less."""
        return self.unfinished

    def left(self, connection: Any) -> bool:
        return bool(connection.eval(_script(self.unfinished), 0))

    def settle(self, place: str) -> None:
        """No rewriting of the log is under way."""
        with self.connect(place) as client:
            while not at_rest(client):
                time.sleep(_LOOK)


def at_rest(client: Any) -> bool:
    """Whether no rewriting of the log is under way."""
    found = client.info("persistence")
    return not any(found[name] for name in ("aof_rewrite_in_progress", "aof_rewrite_scheduled", "aof_pending_rewrite"))


def _script(expression: str) -> str:
    return f"local call = redis.call; return ({expression}) and 1 or 0"
