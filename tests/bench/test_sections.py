"""The study of sections, at the size of the reference load."""

from benchmarks.fleet import Servers
from benchmarks.studies.sections import SIZES, measure, table

from tests.objects import server


def test_sections_come_back_as_they_were() -> None:
    with Servers(None, None) as servers:
        cells = measure("sqlite", servers, server(), None, SIZES[2:3])
    assert all(cell.same for cell in cells)
    assert len(cells) == 2 * 4
    assert "as stored" in table({"sqlite": cells})
