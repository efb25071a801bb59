"""The study of shapes measures every one of them in every situation, and writes it down."""

import json
from pathlib import Path

import pytest
from benchmarks.fleet import Servers
from benchmarks.studies.shapes import SHAPES, Plan, study, table, write


def test_every_shape_is_measured_with_and_without_a_snapshot(servers: Servers, tmp_path: Path) -> None:
    plan = Plan(depths=(300,), batches=(10,), seconds=0.02, times=1, churn=500)
    cells = list(study(servers.postgres("quiet"), plan))
    assert [(cell.shape, cell.held) for cell in cells] == [(name, held) for name in SHAPES for held in (False, True)]
    for cell in cells:
        assert cell.rate > 0
        assert cell.log > 100
        assert cell.relations > 0
    held = {cell.shape: cell.dead for cell in cells if cell.held}
    assert min(held.values()) >= 500

    write(tmp_path / "shapes.jsonl", {"cores": 2}, cells)
    first, *rest = map(json.loads, (tmp_path / "shapes.jsonl").read_text().splitlines())
    assert first["machine"] == {"cores": 2}
    assert [line["shape"] for line in rest] == [cell.shape for cell in cells]
    assert rest[0]["rate"] == pytest.approx(cells[0].rate)
    assert len(table(cells).splitlines()) == 1 + len(cells)
