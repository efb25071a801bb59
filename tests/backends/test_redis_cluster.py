"""A Valkey cluster keeps the contract: the conformance suite and the state machine, on three real primaries."""

from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule
from msgspec.structs import replace

from headrace.backends.redis import ClusterBackend
from headrace.backends.redis.cluster import renewing
from headrace.seam.records import Beat, Claim, Row, Settlement
from headrace.testing.conformance import BackendConformance
from headrace.testing.machine import BackendMachine, draws, machine_for, pools, run_machine
from headrace.types import JobState
from tests.valkey_cluster import stores


class TestRedisCluster(BackendConformance):
    capabilities = (
        "durable", "hints", "policies", "ticks", "references", "documents", "archive", "tracks", "finish_and_claim",
        "events", "journal", "parts", "usage", "transfers", "strict_order", "weighs_wanted",
    )  # fmt: skip

    def connect(self, place: Path) -> ClusterBackend:
        return stores.connect(place)


class _Sharded(BackendMachine):
    """Settlements of one batch that concern several shards have no order among them, and whichever comes first gets a
    key that two of them want; so here each comes alone. Ids are unique: none is stored in two queues, but each has its
    own, as nobody looks into all shards for an id that is new. A worker keeps its queues: it is listed in the shards of
    those that it named last."""

    def _insert(self, rows: list[Row]) -> None:
        super()._insert([_at_home(row) for row in rows])

    def settle(self, batch: list[Settlement]) -> list[JobState | None]:
        states: list[JobState | None] = []
        for settlement in batch:
            states += super().settle([self._with_new_rows(settlement)])
        return states

    def beat(self, beat: Beat) -> None:
        super().beat(replace(beat, queues=pools.QUEUES))

    @rule(batch=st.lists(draws.settlements(), max_size=1), req=draws.claims(), after=draws.pauses)
    def finish_and_claim(self, batch: list[Settlement], req: Claim, after: int) -> None:
        super().finish_and_claim([self._with_new_rows(settlement) for settlement in batch], req, after)

    def _with_new_rows(self, settlement: Settlement) -> Settlement:
        """A job that has left its shard is remembered there for a while after its end."""
        gone = self.world.ids.keys() - self.world.books.keys()
        return replace(settlement, spawn=[_at_home(row) for row in settlement.spawn if row.id not in gone])


def _at_home(row: Row) -> Row:
    return replace(row, queue=pools.QUEUES[sum(row.id) % len(pools.QUEUES)])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(8))
def test_the_state_machine(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its leases are as short as can be, in virtual time: a shard of a busy machine would be late in real time.
    monkeypatch.setattr(renewing, "_LEAST", 60)
    machine = machine_for(stores.connect, durable=True, root=tmp_path, without=frozenset({"store_depth"}))
    run_machine(type("Sharded", (_Sharded, machine), {"__module__": __name__}), seed=seed, examples=10)
