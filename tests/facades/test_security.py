"""Security of payloads: data is never code, never a bomb, and never more than one line of a log."""

from __future__ import annotations

import json
import logging
from random import Random
from typing import Any

import msgspec
import pytest

from headrace import App, Event, EventKind, Job, JobInfo, JobState, JsonSerde, MsgpackSerde, NewJob, Task, immediate
from headrace.core.names import check_name
from headrace.errors import CodecError, HeadraceError, PayloadError, PayloadTooLarge
from headrace.payloads.codec import JSON, MSGPACK, RAW, Envelope, zstd
from headrace.seam.records import Row
from tests.facades.harness import Store, script, within

MIB = 1024 * 1024


def _wrapped(body: bytes, kind: int) -> bytes:
    return Envelope(max_size=64 * MIB, compress_over=None).wrap(body, kind, "cell")


class TestNoCode:
    """X01: decoding imports nothing, calls nothing, and rebuilds no exception."""

    def test_two_hundred_malicious_payloads_import_nothing(self) -> None:
        """An audit hook sees no import, no exec and no new process while they are decoded and run."""
        told = script("""
            import asyncio, json, pickle, sys
            from random import Random
            import msgspec
            from headrace import App, JsonSerde, MsgpackSerde
            from headrace.payloads.codec import JSON, MSGPACK, RAW, Envelope
            from headrace.seam.records import Row, Selector

            class Evil:
                def __reduce__(self):
                    import os
                    return os.system, ("touch /tmp/headrace-was-here",)

            rng = Random(7)
            pickled = pickle.dumps(Evil())
            gadgets = [
                {"__reduce__": ["os.system", ["id"]]},
                {"py/object": "os.system", "py/reduce": [{"py/function": "os.system"}, {"py/tuple": ["id"]}]},
                {"exc_type": "system", "exc_module": "os", "exc_message": ["id"]},
                {"__class__": "subprocess.Popen", "args": ["id"]},
                {"!!python/object/apply:os.system": ["id"]},
                {"task": "os:system", "args": ["id"]},
                {"n": {"__import__": "antigravity"}},
                {"n": "__import__('os').system('id')"},
                {"n": "${jndi:ldap://x}"},
                {"n": 1, "__init__": {"__globals__": {}}},
            ]
            bodies = []
            for number in range(200):
                gadget = gadgets[number % len(gadgets)]
                kind = (JSON, MSGPACK, RAW)[number % 3]
                body = {JSON: json.dumps(gadget).encode(), MSGPACK: msgspec.msgpack.encode(gadget), RAW: pickled}[kind]
                if number % 4 == 3:
                    body = msgspec.msgpack.encode(msgspec.msgpack.Ext(rng.randrange(-128, 128), pickled))
                    kind = MSGPACK
                if number % 7 == 6:
                    body = bytearray(body)
                    body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
                    body = bytes(body)
                bodies.append((kind, body))
            wrap = Envelope(max_size=10**7, compress_over=50).wrap
            rows = [
                Row(number.to_bytes(16, "big"), "default", "take" if number % 2 else "os:system",
                    {"parameters": wrap(body, kind, "cell"), "blob": wrap(body, kind, "cell")})
                for number, (kind, body) in enumerate(bodies)
            ]
            app = App("memory://")

            @app.task(name="take")
            async def take(n: int) -> int:
                return n

            async def main():
                async with app:
                    await take.enqueue(1)
                    await app.drain()               # everything that is imported late is imported now
                    backend = await app.client.backend()
                    await app.get((await app.client.list_jobs(Selector()))[0].id)
                    seen = []
                    watched = ("import", "exec", "compile", "os.system", "subprocess.Popen", "os.exec", "os.fork",
                               "pickle.find_class", "ctypes.dlopen", "open")
                    sys.addaudithook(lambda event, args: seen.append((event, args)) if event in watched else None)
                    await backend.insert(rows)
                    await app.drain()
                    infos = [await app.get(row.id) for row in rows]
                    for kind, body in bodies:
                        for serde in (JsonSerde(), MsgpackSerde()):
                            try:
                                serde.decode(body)
                            except ValueError:
                                pass
                    bad = [event for event in seen if not (event[0] in ("open", "compile") and _tracebacks(event))]
                    print(len(infos), len(bad), *(repr(event)[:200] for event in bad[:3]))

            def _tracebacks(event):
                # Tracebacks read the source lines of our own files.
                return str(event[1][0]).endswith(".py") or event[0] == "compile"

            asyncio.run(main())
        """)
        assert told[:2] == ["200", "0"], told

    async def test_a_task_name_is_looked_up_and_never_imported(self, memory: Store) -> None:
        app = memory.app()

        @app.task(name="known")
        async def known() -> None: ...

        for name in ("os:system", "os.system", "builtins.eval", "__import__", "known.__globals__", "../known"):
            [inserted] = await app.client.insert([NewJob(task=name, args={"command": "id"})])
            await app.drain()
            info = await app.get(inserted.id)
            assert (info.state, info.failures[0].type) == (JobState.AVAILABLE, "UnknownTask")

    async def test_an_error_is_data(self, memory: Store) -> None:
        """The exception class is told by name, never rebuilt."""
        app = memory.app()

        class Trap(Exception):
            made = 0

            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                Trap.made += 1

        @app.task(retry=immediate(1))
        async def broken() -> None:
            raise Trap("x")

        handle = await broken.enqueue()
        await app.drain()
        before = Trap.made
        with pytest.raises(HeadraceError) as caught:
            await handle.result()
        assert not isinstance(caught.value, Trap)
        assert (caught.value.to_dict()["error"]["type"], Trap.made) == (Trap.__qualname__, before)

    @pytest.mark.parametrize("serde", [JsonSerde(), MsgpackSerde(), JsonSerde(int), MsgpackSerde(dict[str, int])])
    def test_any_bytes_give_a_value_or_a_codec_error(self, serde: Any) -> None:
        """X05: nothing else comes out of a decoder."""
        rng = Random(5)
        starts = [b"", b"[", b"{", b'"', b"\x81", b"\x91", b"\xc7", b"\xd8", b"\xdf", b"\xc1", b"-", b"1e", b"\xd6\xff"]
        for number in range(3_000):
            body = rng.choice(starts) + rng.randbytes(rng.randrange(24))
            if number % 3 == 0:
                body = bytes(b % 128 for b in body)
            try:
                serde.decode(body)
            except CodecError:
                pass

    async def test_any_cell_can_be_looked_at(self, memory: Store) -> None:
        """Whatever lies in the store, ``get`` shows it or says why not, and what it gives is plain data."""
        app, rng = memory.app(), Random(6)
        backend = await app.client.backend()
        cells = [rng.randbytes(rng.randrange(40)) for _ in range(100)]
        cells += [_wrapped(rng.randbytes(rng.randrange(20)), kind) for kind in (RAW, JSON, MSGPACK) for _ in range(100)]
        cells += [_wrapped(b"\x81\x91\x01\x01", MSGPACK), _wrapped(b"\xd5\x05ab", MSGPACK), _wrapped(b"1e999", JSON)]
        cells += [_wrapped(b"\xd7\xff" + b"\xff" * 8, MSGPACK), _wrapped(b"\x81\xc0\x01", MSGPACK)]
        ids = [number.to_bytes(16, "big") for number in range(len(cells))]
        await backend.insert([Row(i, "q", "t", {"parameters": cell}) for i, cell in zip(ids, cells, strict=True)])
        for job_id in ids:
            info = await app.get(job_id)
            json.dumps(info.to_dict())

    async def test_forged_headers_do_not_hide_a_job(self, memory: Store) -> None:
        """A row whose headers are damaged can still be looked at, run and failed."""
        app = memory.app()

        @app.task(name="take")
        async def take(job: Job[Any]) -> dict[str, str]:
            return job.headers

        cells = app.client.packer.pack(take.job()).cells
        backend = await app.client.backend()
        await backend.insert([Row(b"\1" * 16, "default", "take", cells, headers=b"\xff damaged")])
        await take.enqueue()
        await within(app.drain())
        info = await app.get(b"\1" * 16)
        assert info.id.bytes == b"\1" * 16


class TestBombs:
    """X06: what unpacks to more than is allowed is refused, at a bounded cost."""

    def _bomb(self, size: int, window: int | None = None) -> bytes:
        options = {zstd.CompressionParameter.compression_level: 1}
        if window:
            options[zstd.CompressionParameter.window_log] = window
            options[zstd.CompressionParameter.enable_long_distance_matching] = 1
        compressor = zstd.ZstdCompressor(options=options)
        packed = b"".join(compressor.compress(bytes(MIB)) for _ in range(size // MIB))
        return packed + compressor.flush()

    def _cell(self, body: bytes) -> bytes:
        return _wrapped(body, JSON | 0x10)

    def test_size_is_capped(self) -> None:
        envelope = Envelope(max_size=MIB, compress_over=None)
        assert envelope.unwrap(self._cell(self._bomb(MIB)), "x") == (JSON, bytes(MIB))
        with pytest.raises(PayloadTooLarge, match=str(MIB)):
            envelope.unwrap(self._cell(self._bomb(200 * MIB)), "x")

    def test_the_size_in_the_header_is_not_trusted(self) -> None:
        """A frame may claim to be small, or say nothing."""
        envelope = Envelope(max_size=MIB, compress_over=None)
        honest = zstd.compress(bytes(2 * MIB))
        for body in (honest, self._bomb(2 * MIB)):
            with pytest.raises(PayloadTooLarge):
                envelope.unwrap(self._cell(body), "x")

    @pytest.mark.parametrize("cut", [1, 10, -1])
    def test_a_frame_cut_short_is_damaged(self, cut: int) -> None:
        envelope = Envelope(max_size=MIB, compress_over=None)
        with pytest.raises(PayloadError):
            envelope.unwrap(self._cell(zstd.compress(b"x" * 10_000)[:cut]), "x")

    def test_nothing_may_follow_the_frame(self) -> None:
        """Two frames, or a frame and garbage, are not what was written: told, not half read."""
        envelope = Envelope(max_size=MIB, compress_over=None)
        frame = zstd.compress(b"x" * 100)
        for body in (frame + frame, frame + b"garbage"):
            with pytest.raises(CodecError):
                envelope.unwrap(self._cell(body), "x")

    @pytest.mark.parametrize("window", [0, 27])
    def test_memory_is_capped(self, window: int) -> None:
        """A bomb raises the process's memory by no more than the cap and 32 MB, be its window ever so wide."""
        packed = self._bomb(150 * MIB, window)
        told = script(f"""
            import sys
            from pathlib import Path
            from headrace.payloads.codec import Envelope, JSON
            from headrace.errors import PayloadTooLarge

            envelope = Envelope(max_size=16 * 1024 * 1024, compress_over=None)
            cell = Envelope(max_size=10**9, compress_over=None).wrap(bytes.fromhex({packed.hex()!r}), JSON | 0x10, "x")

            def peak():  # ru_maxrss of a child begins with its parent's
                [told] = [line for line in Path("/proc/self/status").open() if line.startswith("VmHWM")]
                return int(told.split()[1])

            before = peak()
            for _ in range(3):
                try:
                    envelope.unwrap(cell, "x")
                    sys.exit("it was opened")
                except Exception as error:
                    told = type(error).__name__
            print(told, (peak() - before) // 1024)
        """)
        assert told[0] in ("PayloadTooLarge", "CodecError")
        assert int(told[1]) <= 16 + 32

    async def test_a_bomb_fails_its_job_and_no_other(self, store: Store) -> None:
        app, seen = store.app(payloads={"max_size": MIB}), []

        @app.task(name="take")
        async def take(n: int) -> None:
            seen.append(n)

        backend = await app.client.backend()
        await backend.insert([Row(b"\1" * 16, "default", "take", {"parameters": self._cell(self._bomb(100 * MIB))})])
        await take.enqueue(1)
        await within(app.drain())
        info = await app.get(b"\1" * 16)
        assert (info.state, info.failures[0].type, seen) == (JobState.FAILED, "PayloadTooLarge", [1])


NASTY = "a\r\nFAKE 2030-01-01 root logged in\x1b[2J\x00\u2028\u2029\x85\x9b31m\x7f\u202e"


class TestLogs:
    """X12: one event, one line, whatever stands in its fields."""

    @staticmethod
    def _one_line(text: str) -> bool:
        return len(text.splitlines()) == 1 and all(c.isprintable() for c in text)

    @pytest.mark.parametrize("field", ["queue", "task", "key", "worker", "detail", "result", "error"])
    def test_events(self, field: str) -> None:
        value: Any = ValueError(NASTY) if field == "error" else NASTY
        assert self._one_line(repr(Event(EventKind.FAILED, b"\n" * 16, **{field: value})))

    async def test_what_people_see_of_a_job(self, memory: Store) -> None:
        name = NASTY.replace("\0", "")
        app = App(memory.client())
        shown: list[str] = []

        @app.task(name=name, queue="q\u202e")
        async def look(job: Job[Any]) -> None:
            shown.extend((repr(job), repr(job.lease)))

        handle = await look.options(key=name, tenant=name, headers={name: name}).enqueue()
        await app.drain()
        info: JobInfo = await handle.info()
        task: Task[..., Any] = look
        for text in (*shown, repr(handle), repr(task), repr(info)):
            assert self._one_line(text), text

    async def test_what_is_logged(self, memory: Store, caplog: Any) -> None:
        """Nothing of a payload but what its handler says in an error, and no line of its making."""
        name = NASTY.replace("\0", "")
        app = memory.app()

        def broken(event: Event) -> None:
            raise RuntimeError("observer")

        app.observe(broken)

        @app.task(name=name, queue="q\u202e")
        async def look(secret: str) -> None:
            raise ValueError(NASTY)

        with caplog.at_level(logging.DEBUG, "headrace"):
            await look.enqueue("hunter2")
            await app.drain()
        for record in caplog.records:
            assert self._one_line(record.getMessage()), record.getMessage()
            assert "hunter2" not in record.getMessage()

    def test_messages_of_errors(self) -> None:
        """A name in an error is shown with its control characters escaped."""
        with pytest.raises(HeadraceError) as caught:
            check_name(NASTY, "queue")
        assert self._one_line(str(caught.value))
        assert msgspec.json.encode(caught.value.to_dict())
