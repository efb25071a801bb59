"""Headrace on Valkey."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks.gate import Gate
from benchmarks.payload import SMALL
from benchmarks.systems.aof import Aof
from benchmarks.systems.fastloop import on_uvloop
from benchmarks.systems.headrace import Headrace
from benchmarks.systems.headrace_journal import Journal, swept
from benchmarks.systems.load import Load
from benchmarks.systems.probe import Forgetful, Probe
from benchmarks.systems.system import Answer, needed
from benchmarks.systems.valkey import ValkeySystem


class HeadraceValkey(ValkeySystem, Headrace):
    """The worker as ``headrace worker`` runs it. The server is watched by its keys, then asked through the API."""

    roles = frozenset(
        {"enqueue", "concurrent", "bulk", "fill", "work", "watch", "produce", "call", "footprint", "solo", "claims"}
        | {"appended", "emptied"}
    )  # fmt: skip
    forgets = True
    distributions = ("headrace", "msgspec", "redis", "hiredis", "uvloop")

    def __init__(self, name: str) -> None:
        super().__init__(name, "at least once, uvloop; default settings")

    def run(self, main: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        return on_uvloop(main)

    def fill(self, gate: Gate, place: str, count: int, aside: int = 0, size: int = SMALL, task: str = "noop") -> Answer:
        answer = Headrace.fill(self, gate, place, count, aside, size, task)
        self.settle(place)
        return answer

    def watch(self, gate: Gate, place: str, goal: int) -> Answer:
        answer = super().watch(gate, place, goal)

        async def check() -> Answer:
            async with self._bench(place) as bench:
                left, spoilt = await bench.left(), await bench.spoilt()
                if left or spoilt:
                    raise RuntimeError(f"{left} jobs are left, {spoilt} failed or were cancelled")
                return answer

        return self.run(check)

    def left(self, connection: Any) -> bool:
        return bool(_places(connection))

    def condition(self, client: Any) -> str:
        """Do the keys exist under which jobs wait, or those under which they would be leased?"""
        waiting = _places(client)
        needed(bool(waiting))
        leased = {_base(key) + ":l" for key in waiting}
        return f"call('EXISTS', {', '.join(repr(key) for key in {*waiting, *leased})}) > 0"

    def appended(self, gate: Gate, place: str, count: int, load: str, history: bool) -> Answer:
        """Bytes of the log, by part, for a load with or without a history of completed jobs."""

        async def main() -> Answer:
            async with self._bench(place, probe=Probe if history else Forgetful) as bench:
                gate.ready()
                with self.connect(place) as client:
                    return await Journal(bench, Load(load), count).measure(Aof(client), history=history)

        return self.run(main)

    def emptied(self, gate: Gate, place: str, count: int, history: bool, filled: bool) -> Answer:
        """Work off so many jobs, which are stored first where they are not, and keep a record of them or none."""

        async def main() -> Answer:
            async with self._bench(place, probe=Probe if history else Forgetful) as bench:
                gate.ready()
                if not filled:
                    await bench.fill(count)
                await bench.drain(count, [])
                if not history:
                    await swept(bench.probe)
                return {}

        return self.run(main)


def _places(client: Any) -> list[str]:
    """The keys under which jobs wait or are leased."""
    return [key.decode() for pattern in ("headrace{*}:r:*", "headrace{*}:l") for key in client.keys(pattern)]


def _base(key: str) -> str:
    return key.partition("}")[0] + "}"
