"""Payloads are as large as they are said to be, the same everywhere, and compress as theirs would."""

import zlib

from benchmarks.payload import REFERENCE, document, noise, sections
from benchmarks.systems.load import Load


def test_the_reference_load_has_its_sections() -> None:
    for compressible in (False, True):
        found = sections(7, compressible=compressible)
        assert {name: len(body) for name, body in found.items()} == REFERENCE
        assert found == sections(7, compressible=compressible)
        assert found != sections(8, compressible=compressible)


def test_noise_cannot_be_compressed_and_a_document_can() -> None:
    assert len(zlib.compress(noise(2_700, 1))) > 2_700
    assert len(zlib.compress(document(2_700, 1))) < 2_700 / 2


def test_one_job_in_ten_comes_back_with_another_state() -> None:
    load = Load("random")
    again = [number for number in range(100) if load.retried(number) is not None]
    assert again == list(range(0, 100, 10))
    assert load.retried(0) != load.sections(0)["vm_state"]
    assert load.payload(100) == 100 * 4_575 + 10 * 2_700


def test_a_small_job_is_small_and_never_comes_back() -> None:
    load = Load("small")
    assert load.sections(0) == {}
    assert load.retried(0) is None
    assert load.payload(3) == 600
