"""From a new job to a row, and from a leased cell to a value."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from random import Random
from typing import Any
from uuid import UUID

import pytest

from headrace import JsonSerde, NewJob, Patch, RawSerde, Sections
from headrace.core.clock import ManualClock
from headrace.core.config import Compress, PayloadSettings
from headrace.core.ids import IdMaker
from headrace.errors import InvalidJob, PayloadMissing, PayloadTooLarge
from headrace.payloads.codec import JSON, RAW
from headrace.payloads.pack import Packer
from headrace.seam.records import Leased, Limits
from headrace.types import Encoded


@pytest.fixture
def packer() -> Packer:
    return Packer(PayloadSettings(max_size=1_000), Limits(), IdMaker(ManualClock(), Random(1)))


def test_defaults(packer: Packer) -> None:
    row = packer.pack(NewJob(task="t"))
    assert (row.queue, row.tenant, row.key, row.priority, row.delay) == ("default", "", None, 0, 0)
    assert (row.run_at, row.expires, row.max_attempts, row.timeout, row.result_ttl) == (None,) * 5
    assert (row.cells, row.headers, row.reply_to, row.hold_failed) == ({}, None, None, False)


def test_everything(packer: Packer) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    job = NewJob(
        task="t",
        queue="q",
        args={"a": 1},
        key="k",
        tenant="x",
        priority=-5,
        run_at=at,
        max_attempts=3,
        timeout="1s",
        expires="2s",
        result_ttl="3s",
        headers={"h": "v"},
        on_failed="return",
        id=UUID(int=7),
    )
    row = packer.pack(job, reply_to="inbox")
    assert (row.id, row.queue, row.key, row.tenant, row.priority) == (UUID(int=7).bytes, "q", "k", "x", -5)
    assert row.run_at == int(at.timestamp()) * 1_000_000
    assert (row.max_attempts, row.timeout, row.expires, row.result_ttl) == (3, 1_000_000, 2_000_000, 3_000_000)
    assert (row.reply_to, row.hold_failed, row.headers) == ("inbox", True, b"\x81\xa1h\xa1v")
    assert packer.envelope.unwrap(row.cells["parameters"], "x") == (JSON, b'{"a":1}')


def test_ids_are_made_in_order(packer: Packer) -> None:
    ids = [packer.pack(NewJob(task="t")).id for _ in range(100)]
    assert ids == sorted(set(ids))


def test_sections(packer: Packer) -> None:
    """000-63: each on its own; None and unset are not stored, empty is."""
    row = packer.pack(NewJob(task="t", sections=Sections(vm_state=b"state", metadata=b"", blob=None)))
    leased = Leased(row.id, row.queue, row.task, row.cells, epoch=1)
    assert packer.sections(leased) == {"vm_state": b"state", "metadata": b""}
    assert packer.envelope.unwrap(row.cells["vm_state"], "x") == (RAW, b"state")
    with pytest.raises(PayloadMissing, match="parameters"):
        packer.decode(leased, JsonSerde())


def test_patches(packer: Packer) -> None:
    patch = packer.patch(Patch(sections=Sections(vm_state=b"new", blob=None)), bytes(16), "")
    assert patch["blob"] is None
    assert set(patch) == {"vm_state", "blob"}
    assert packer.envelope.unwrap(patch["vm_state"] or b"", "vm_state") == (RAW, b"new")
    assert packer.patch(Patch(), bytes(16), "") == {}


def test_encoded_arguments_are_taken_as_they_are(packer: Packer) -> None:
    cell = packer.wrap_value({"a": 1}, JsonSerde[Any](), "x")
    assert packer.pack(NewJob(task="t", args=Encoded(cell))).cells == {"parameters": cell}


@pytest.mark.parametrize("cell", ["text", None, 5, bytearray(b"x")])
def test_encoded_arguments_are_bytes(packer: Packer, cell: Any) -> None:
    for more in ({}, {"sections": Sections(blob=b"x")}):
        with pytest.raises(InvalidJob, match=r"args: expected bytes in Encoded\(…\), got \w+; task.job"):
            packer.pack(NewJob(task="t", args=Encoded(cell), **more))


def test_encoded_arguments_that_no_store_takes() -> None:
    packer = Packer(PayloadSettings(), Limits(max_cell=100), IdMaker(ManualClock(), Random(1)))
    assert packer.pack(NewJob(task="t", args=Encoded(bytes(100))))
    with pytest.raises(PayloadTooLarge, match="args: expected at most 100 bytes, got 101"):
        packer.pack(NewJob(task="t", args=Encoded(bytes(101))))


def test_limits(packer: Packer) -> None:
    """X13: each at its limit and one past it."""
    fits: list[dict[str, Any]] = [
        {"priority": 32_767},
        {"priority": -32_768},
        {"max_attempts": 2**31 - 1},
        {"delay": timedelta(days=3_660)},
        {"sections": Sections(blob=bytes(1_000))},
        {"headers": {"a": "x" * 8_180}},
        {"key": "k" * 1_024},
        {"run_at": datetime(1970, 1, 1, tzinfo=UTC)},
    ]
    over: list[dict[str, Any]] = [
        {"priority": 32_768},
        {"priority": -32_769},
        {"max_attempts": 2**31},
        {"delay": timedelta(days=3_660, microseconds=1)},
        {"sections": Sections(blob=bytes(1_001))},
        {"headers": {"a": "x" * 8_192}},
        {"headers": {"headrace-slot": "mine"}},
        {"key": "k" * 1_025},
        {"run_at": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)},
    ]
    for options in fits:
        packer.pack(NewJob(task="t", **options))
    for options in over:
        with pytest.raises((InvalidJob, PayloadTooLarge)):
            packer.pack(NewJob(task="t", **options))


def test_the_store_s_limits_count() -> None:
    packer = Packer(
        PayloadSettings(), Limits(max_cell=200, min_priority=0, max_priority=9), IdMaker(ManualClock(), Random(1))
    )
    with pytest.raises(InvalidJob, match="from 0 to 9"):
        packer.pack(NewJob(task="t", priority=-1))
    with pytest.raises(PayloadTooLarge):
        packer.pack(NewJob(task="t", sections=Sections(blob=bytes(200))))


@pytest.mark.parametrize("zone", [timedelta(hours=14), timedelta(hours=-12), timedelta(minutes=90)])
def test_dates_of_any_zone(packer: Packer, zone: timedelta) -> None:
    at = datetime(2030, 6, 1, 12, tzinfo=UTC)
    assert packer.pack(NewJob(task="t", run_at=at.astimezone(timezone(zone)))).run_at == at.timestamp() * 1e6


def test_each_section_is_compressed_or_not() -> None:
    """000-20: a switch for each, and transparent on the way back."""
    settings = PayloadSettings(compress=Compress(vm_state=False, result=False))
    packer = Packer(settings, Limits(), IdMaker(ManualClock(), Random(1)))
    body = b"a" * 5_000
    row = packer.pack(NewJob(task="t", sections=Sections(vm_state=body, blob=body, metadata=b"m")))
    result = packer.wrap_result(body, RawSerde(), row.id)
    assert result is not None
    assert (len(row.cells["vm_state"]), len(result)) == (5_005, 5_005)
    assert len(row.cells["blob"]) < 100
    assert packer.sections(Leased(row.id, row.queue, row.task, row.cells, epoch=1)) == {
        "vm_state": body,
        "metadata": b"m",
        "blob": body,
    }
    assert packer.envelope.unwrap(result, "result") == (RAW, body)


def test_sizes_are_counted_by_section() -> None:
    """000-121: raw and compressed."""
    packer = Packer(PayloadSettings(), Limits(), IdMaker(ManualClock(), Random(1)))
    for size in (10, 5_000):
        packer.pack(NewJob(task="t", args={}, sections=Sections(blob=b"a" * size)))
    sizes = packer.sizes.plain()
    assert {name: of["count"] for name, of in sizes.items()} == {
        "parameters": 2, "vm_state": 0, "metadata": 0, "blob": 2, "result": 0,
    }  # fmt: skip
    assert (sizes["blob"]["raw"], sizes["blob"]["largest"]) == (5_010, 5_000)
    assert 10 < sizes["blob"]["stored"] < 100
