"""Names are data, ids are UUIDs that rise."""

from __future__ import annotations

import os
import socket
from base64 import urlsafe_b64decode
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st

from headrace import App, NewJob, Queue
from headrace.core.clock import ManualClock
from headrace.core.ids import IdMaker, parse_id, secret_name, seeded_by_system
from headrace.core.names import check_name, check_queue, worker_name
from headrace.errors import InvalidJob
from tests.unit.given import given


class TestNames:
    @given(st.text(max_size=300))
    def test_almost_anything_goes(self, name: str) -> None:
        """Text without NUL and lone surrogates, up to 1,024 bytes."""
        fits = name and "\0" not in name and len(name.encode("utf-8", "surrogatepass")) <= 1_024
        if fits and not any("\ud800" <= c <= "\udfff" for c in name):
            assert check_name(name, "queue") == name
        else:
            with pytest.raises(InvalidJob, match="queue: "):
                check_name(name, "queue")

    @pytest.mark.parametrize("name", ["a b\n", "a\tb", "\x1b[2J", "a\x7f", "a\x85", "a\u2028b"])
    def test_no_job_goes_to_a_queue_with_a_control_character_in_its_name(self, name: str) -> None:
        """Keys, tenants and the like are other people's data, and may have them."""
        assert check_name(name, "key") == name
        with pytest.raises(InvalidJob, match=r"queue: .* contains a control character; remove line ends"):
            check_queue(name)
        app = App("memory://")
        with pytest.raises(InvalidJob, match="control character"):
            app.task(queue=name)(print)
        with pytest.raises(InvalidJob, match="control character"):
            Queue[int, int](name, "memory://")
        for job in (NewJob(task="t", queue=name), NewJob(task="t", overflow=name)):
            with pytest.raises(InvalidJob, match="control character"):
                app.client.packer.pack(job)
        assert app.client.packer.pack(NewJob(task=name, tenant=name, key=name, group=name)).tenant == name
        with pytest.raises(InvalidJob, match="control character"):
            app.client.packer.pack(NewJob(task="t", queue=name))

    @pytest.mark.parametrize("name", ["mail", "a b", "é/ö:🙂", "q\u202e", "a\u00a0b"])
    def test_other_queues_are_data(self, name: str) -> None:
        assert check_queue(name) == name

    def test_the_length_is_in_bytes(self) -> None:
        assert check_name("é" * 512, "queue")
        with pytest.raises(InvalidJob, match="at most 1024 bytes in UTF-8, got 1026"):
            check_name("é" * 513, "queue")

    def test_empty_only_where_it_may_be(self) -> None:
        assert check_name("", "tenant", empty=True) == ""
        with pytest.raises(InvalidJob, match="got an empty string"):
            check_name("", "queue")

    @pytest.mark.parametrize("name", [None, 5, b"x", ["x"], object(), True])
    def test_only_text(self, name: Any) -> None:
        with pytest.raises(InvalidJob, match=f"queue: expected a string, got {type(name).__name__}"):
            check_name(name, "queue")

    def test_a_long_name_does_not_make_a_long_message(self) -> None:
        for name in ("x" * 10**6, "\ud800" * 10**6, "\0" * 1_000, ["x" * 10**6]):
            with pytest.raises(InvalidJob) as caught:
                check_name(name, "queue")
            assert len(str(caught.value)) < 300

    def test_of_workers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """002-46."""
        host = socket.gethostname()
        monkeypatch.setenv("HOSTNAME", "pod-7")
        assert worker_name("hostname", Random(1)) == host
        assert worker_name("host-pid", Random(1)) == f"{host}-{os.getpid()}"
        assert worker_name("pod", Random(1)) == "pod-7"
        monkeypatch.delenv("HOSTNAME")
        assert worker_name("pod", Random(1)) == host
        assert worker_name("random", Random(1)) == worker_name("random", Random(1)) != worker_name("random", Random(2))
        assert worker_name("mine", Random(1)) == "mine"
        with pytest.raises(InvalidJob, match="worker name"):
            worker_name("a\0b", Random(1))


class TestIds:
    def test_are_version_7(self) -> None:
        clock = ManualClock(1_800_000_000_123_456)
        made = UUID(bytes=IdMaker(clock, Random(1)).new())
        assert (made.version, made.variant) == (7, UUID(int=0x8000 << 48).variant)
        assert made.int >> 80 == 1_800_000_000_123

    def test_rise_within_one_instant(self) -> None:
        ids = IdMaker(ManualClock(), Random(1))
        made = [ids.new() for _ in range(10_000)]
        assert made == sorted(set(made))

    @given(st.lists(st.integers(-10_000, 10_000), max_size=50))
    def test_rise_whatever_the_clock_does(self, steps: list[int]) -> None:
        clock = ManualClock()
        ids, made = IdMaker(clock, Random(1)), []
        for step in steps:
            clock._now += step
            made.append(ids.new())
        assert made == sorted(set(made))

    def test_a_clock_that_jumped_ahead_is_forgiven(self) -> None:
        """After a leap into the future and back, ids still rise and still tell a time near the leap."""
        clock = ManualClock()
        ids = IdMaker(clock, Random(1))
        clock._now += 10**12
        ahead = ids.new()
        clock._now -= 10**12
        assert ids.new() > ahead

    @given(st.uuids())
    def test_are_read_in_any_spelling(self, made: UUID) -> None:
        assert parse_id(str(made)) == parse_id(made.hex) == parse_id(str(made).upper()) == made.bytes

    @pytest.mark.parametrize(
        "text", ["", "x", "0" * 31, "0" * 33, "g" * 32, "\ud800", "-" * 36, "urn:uuid:" + "0" * 32]
    )
    def test_other_texts_are_refused(self, text: str) -> None:
        with pytest.raises(InvalidJob, match="UUID of 32 hex digits"):
            parse_id(text)

    def test_a_long_text_does_not_make_a_long_message(self) -> None:
        with pytest.raises(InvalidJob) as caught:
            parse_id("x" * 10**6)
        assert len(str(caught.value)) < 300

    def test_secrets(self) -> None:
        """X18: 128 bits, from the system's randomness."""
        assert len(urlsafe_b64decode(secret_name(seeded_by_system()) + "==")) == 16
        assert len({secret_name(seeded_by_system()) for _ in range(100)}) == 100
