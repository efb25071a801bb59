"""A Valkey server with a locale compares strings by the rules of a language; jobs are in the order of their bytes."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio
from msgspec.structs import replace
from servers.valkey import Valkey

from headrace.backends.redis import RedisBackend, parse
from headrace.seam.records import Cancel, Claim, JobId, Selector, Watch
from headrace.seam.ticks import Look, Save, ScheduleSelector
from headrace.testing.conformance.base import LEASE, T0, row
from headrace.testing.conformance.ticks import schedule

_MANY = Random(1).randbytes(200 * 16)
IDS = sorted(_MANY[at : at + 16] for at in range(0, len(_MANY), 16))
PAGE = 10


@pytest.fixture(scope="module")
def german(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """A server where ä comes before b."""
    place = tmp_path_factory.mktemp("locales")
    make_locale(place / "de_DE")
    valkey = Valkey(environment={"LOCPATH": str(place), "LC_ALL": "de_DE"})
    valkey.start()
    yield valkey
    valkey.close()


def make_locale(place: Path) -> None:
    done = subprocess.run(
        ["localedef", "--no-archive", "-i", "de_DE", "-f", "ISO-8859-1", str(place)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest_asyncio.fixture
async def store(german: Valkey) -> AsyncIterator[RedisBackend]:
    """With jobs of two queues, whose ids are any bytes."""
    german.call("FLUSHALL")
    backend = RedisBackend(parse(german.url(), {}, "valkey"))
    await backend.open()
    rows = [replace(row(0), id=name, queue=f"q{place % 2}") for place, name in enumerate(IDS)]
    await backend.insert(Random(2).sample(rows, len(rows)), T0)
    yield backend
    await backend.close()


def test_the_servers_own_order_is_another_one(german: Valkey) -> None:
    script = "return ARGV[1] < ARGV[2] and 1 or 0"
    same = sum(german.call("EVAL", script, 0, one, other) for one, other in pairwise(IDS))
    assert same < len(IDS) * 3 // 4


@pytest.mark.parametrize("change", [Watch("me"), Cancel()], ids=["they stay", "they end"])
async def test_an_alter_of_all_meets_each_job_once(store: RedisBackend, change: Watch | Cancel) -> None:
    met: list[JobId] = []
    while True:
        selector = Selector(limit=PAGE, above=met[-1] if met else None)
        answers = await store.alter(selector, change, T0)
        met += [answer.id for answer in answers]
        if len(answers) < PAGE:
            break
    assert met == IDS


@pytest.mark.parametrize("above", [None, IDS[70]], ids=["all", "above one"])
async def test_a_scan_meets_each_job_once(store: RedisBackend, above: JobId | None) -> None:
    met: list[JobId] = []
    after: str | None = None
    while True:
        page = await store.scan(Selector(above=above), after, PAGE, T0)
        met += [record.id for record in page.records]
        after = page.after
        if after is None:
            break
    assert met == (IDS if above is None else IDS[71:])[::-1]


async def test_a_scan_of_named_jobs_is_in_order(store: RedisBackend) -> None:
    page = await store.scan(Selector(ids=Random(3).sample(IDS, len(IDS))), None, len(IDS), T0)
    assert [record.id for record in page.records] == IDS[::-1]


async def test_a_claim_takes_the_jobs_of_several_queues_in_order(store: RedisBackend) -> None:
    taken: list[JobId] = []
    while jobs := (await store.claim(Claim("w1", ("q0", "q1"), 30, LEASE), T0)).jobs:
        taken += [job.id for job in jobs]
    assert taken == IDS


async def test_schedules_are_in_the_order_of_their_names(store: RedisBackend) -> None:
    names = ["Z", "a", "ab", "a b", "z", "ä", "b", "B", "é", "ÿ", "ключ", "\x7f", "-a", "_a"]
    saves = [Save(schedule(n, name=name, bucket=n % 3), 0) for n, name in enumerate(names)]
    assert all(await store.ticks.save(saves, T0))
    found: list[str] = []
    while page := await store.ticks.find(ScheduleSelector(), found[-1] if found else None, 3):
        found += [one.name for one in page]
    assert found == sorted(names)
    assert [one.name for one in (await store.ticks.due(Look(5), T0)).schedules] == sorted(names)[:5]
