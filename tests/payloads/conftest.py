"""An object store of each kind that can be had here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from servers.seaweedfs import SeaweedFS

from headrace.core.clock import ManualClock, SystemClock
from headrace.payloads.object_url import Location, parse
from headrace.payloads.objects import Objects
from headrace.payloads.segments import Segments
from tests.objects import server


@pytest.fixture(params=["s3", "file", "memory"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A blank place for objects."""
    match request.param:
        case "s3":
            return parse(server().url(f"tests/{tmp_path.parent.name}/{tmp_path.name}"))
        case "file":
            return parse(f"file://{tmp_path}/objects%20here")
        case _:
            return parse("memory://")


@pytest.fixture
def s3(tmp_path: Path) -> Location:
    return parse(server().url(f"tests/{tmp_path.parent.name}/{tmp_path.name}"))


@pytest.fixture
def clock() -> ManualClock:
    """It stands still at the time it is: object stores say themselves when something was written."""
    return ManualClock(SystemClock().now())


@pytest.fixture
async def objects(location: Location) -> Objects:
    return Objects(location)


@pytest.fixture
async def segments(objects: Objects, clock: ManualClock) -> Segments:
    return Segments(objects, clock, Random())


@pytest.fixture
def own_server() -> Iterator[SeaweedFS]:
    """A server that a test may freeze or kill."""
    seaweed = SeaweedFS()
    try:
        seaweed.start()
        yield seaweed
    finally:
        seaweed.close()
