"""The study of code without an event loop: who takes part blocks, on one store, but for ours awaited."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import harness
from benchmarks.metrics.enqueue import Enqueue
from benchmarks.metrics.metric import Bench
from benchmarks.results import Run
from benchmarks.studies import blocking
from benchmarks.systems import SYSTEMS
from benchmarks.systems.peer import AsyncPeer
from benchmarks.systems.system import System

OURS, AWAITED, PEER = "headrace-sqlite-sync", "headrace-sqlite-full", "huey-sqlite"


@pytest.mark.parametrize("store", list(blocking.SINGLE))
def test_all_who_take_part_block_on_one_store(store: str) -> None:
    ours, awaited, *peers = [SYSTEMS[name] for name in blocking.systems(store)]
    assert not ours.peer
    assert not awaited.peer
    assert ours.backend == awaited.backend
    assert ours.setting.startswith(awaited.setting)
    assert peers
    for peer in peers:
        assert peer.peer
        assert not isinstance(peer, AsyncPeer)
        assert (peer.backend, "enqueue" in peer.roles) == (store, True)


def test_it_measures_and_writes_only_what_is_worth_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(blocking, "SINGLE", {"sqlite": replace(blocking.SINGLE["sqlite"], sync_peers=())})
    monkeypatch.setattr(blocking, "_FULL", replace(blocking._QUICK, repeats=2))
    awaited, _ = blocking.judged()
    monkeypatch.setattr(blocking, "judged", lambda: [replace(awaited, bound=0)])
    output = tmp_path / "blocking.jsonl"
    assert blocking.main(["--quick", "--output", str(output)]) == 0
    assert not output.exists()
    assert blocking.main(["--output", str(output)]) == 0
    for system in (OURS, AWAITED):
        result = Run.read(output).find(system, "enqueue")
        assert result is not None
        assert len(result.values) == 2
    assert f"reached       {OURS}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ours", "awaited", "peer", "code", "told"),
    [
        ([90, 91, 92], [100, 100, 100], [80, 80, 80], 0, ["reached", "reached"]),
        ([80, 81, 82], [100, 100, 100], [70, 70, 70], 1, ["MISSED", "reached"]),
        ([90, 91, 92], [99, 99, 99], [98, 99, 99], 1, ["reached", "MISSED"]),
        ([80, 81, 95], [100, 100, 100], [70, 70, 70], 0, ["MISSED", "reached", "noise:"]),
        ([90, 91, 92], [99, 99, 99], [70, 99, 99], 0, ["reached", "MISSED", "noise:"]),
    ],
)
def test_what_is_missed_in_all_rounds_ends_with_an_error(
    ours: list[float],
    awaited: list[float],
    peer: list[float],
    code: int,
    told: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = {OURS: iter(ours), AWAITED: iter(awaited), PEER: iter(peer)}

    def installed(self: harness.Harness, systems: Sequence[System]) -> list[System]:
        for system in systems:
            self.run.versions[system.name] = {}
        return list(systems)

    def run(self: Enqueue, bench: Bench, system: System) -> dict[str, float]:
        return {"enqueue": next(figures[system.name])}

    monkeypatch.setattr(harness.Harness, "installed", installed)
    monkeypatch.setattr(Enqueue, "run", run)
    monkeypatch.setattr(blocking, "_FULL", replace(blocking._FULL, repeats=3))
    monkeypatch.setattr(blocking, "SINGLE", {"sqlite": replace(blocking.SINGLE["sqlite"], sync_peers=(PEER,))})
    monkeypatch.setattr(blocking, "facts", lambda place: {"filesystem": "ext4"})
    assert blocking.main(["--output", str(tmp_path / "blocking.jsonl")]) == code
    words = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line]
    assert [word for word in words if word in ("reached", "MISSED", "noise:")] == told
