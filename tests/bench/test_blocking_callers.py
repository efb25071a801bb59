"""The study of code without an event loop: only libraries that block, on the same store, take part."""

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.results import Run
from benchmarks.studies import blocking
from benchmarks.systems import SYSTEMS
from benchmarks.systems.peer import AsyncPeer


@pytest.mark.parametrize("store", list(blocking.SINGLE))
def test_all_who_take_part_block_on_one_store(store: str) -> None:
    ours, *peers = [SYSTEMS[name] for name in blocking.systems(store)]
    assert not ours.peer
    assert peers
    for peer in peers:
        assert peer.peer
        assert not isinstance(peer, AsyncPeer)
        assert (peer.backend, "enqueue" in peer.roles) == (store, True)


def test_it_measures_judges_and_writes_only_what_is_worth_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(blocking, "SINGLE", {"sqlite": replace(blocking.SINGLE["sqlite"], sync_peers=())})
    monkeypatch.setattr(blocking, "_FULL", replace(blocking._QUICK, repeats=2))
    output = tmp_path / "blocking.jsonl"
    assert blocking.main(["--quick", "--output", str(output)]) == 0
    assert not output.exists()
    assert blocking.main(["--output", str(output)]) == 0
    result = Run.read(output).find("headrace-sqlite-sync", "enqueue")
    assert result is not None
    assert len(result.values) == 2
    assert "not measured  headrace-sqlite-sync" in capsys.readouterr().out
