"""The study of sections, at the size of the reference load."""

from benchmarks.fleet import Servers
from benchmarks.studies.sections import SIZES, Cell, is_right, measure, table

from tests.objects import server


def test_sections_come_back_as_they_were() -> None:
    with Servers(None, None) as servers:
        cells = measure("sqlite", servers, server(), None, SIZES[2:3])
    assert all(cell.same for cell in cells)
    assert len(cells) == 2 * 4
    assert "as stored" in table({"sqlite": cells})


def test_the_verdict_includes_memory() -> None:
    assert is_right(Cell("inline", "blob", 64, same=True, memory={"reader": 3.0}))
    assert not is_right(Cell("inline", "blob", 64, same=True, memory={"reader": 3.1}))
    assert not is_right(Cell("inline", "blob", 64, same=False, memory={}))
