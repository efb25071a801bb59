"""The study of sections, at the size of the reference load."""

from pathlib import Path

import pytest
from benchmarks.fleet import Servers
from benchmarks.studies.sections import SIZES, Cell, is_right, measure, played, table
from benchmarks.studies.stores import fresh

from tests.objects import server


def test_sections_come_back_as_they_were() -> None:
    with Servers(None, None) as servers:
        cells = measure("sqlite", servers, server(), None, SIZES[2:3])
    assert all(cell.same for cell in cells)
    assert len(cells) == 2 * 4
    assert "as stored" in table({"sqlite": cells})


def test_the_verdict_includes_memory() -> None:
    assert is_right(Cell("inline", "blob", 64, same=True, memory={"reader": 3.0}), "postgres")
    assert not is_right(Cell("inline", "blob", 64, same=True, memory={"reader": 3.1}), "postgres")
    assert not is_right(Cell("inline", "blob", 64, same=False, memory={}), "postgres")
    keyed = {"keyed producer": 4.0, "keyed writer": 3.0}
    assert is_right(Cell("inline", "blob", 64, same=True, memory=keyed), "postgres")
    assert not is_right(Cell("inline", "blob", 64, same=True, memory=keyed), "sqlite")
    assert not is_right(Cell("objects", "blob", 64, same=True, memory=keyed), "postgres")


@pytest.mark.parametrize(
    ("store", "most"),
    [
        ("postgres", {"producer": 2, "writer": 3, "keyed producer": 4, "keyed writer": 3}),
        ("sqlite", {"producer": 2.25, "reader": 2.25, "writer": 2}),
    ],
)
def test_the_largest_section_takes_as_much_memory_as_is_told(
    store: str, most: dict[str, float], servers: Servers, tmp_path: Path
) -> None:
    """In docs/howto/objects.md, in multiples of the section. One more copy of it would be noticed."""
    size, taken = SIZES[-1], {}
    with fresh(store, servers, tmp_path) as made:
        for part in most:
            one = played([part], made.url, "", "inline", "blob", size)
            assert one["same"]
            taken[part] = (one["most"] - one["base"]) / size
    assert {part: share for part, share in taken.items() if share > most[part] + 0.5} == {}
