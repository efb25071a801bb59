"""The same three shapes on Valkey."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from benchmarks.studies.sheet_shapes import Subjects, divided, pack, place, unpack


class ValkeyRows:
    """A sorted set by time for each tier."""

    def __init__(self, client: Any, size: int) -> None:
        self._client = client
        self._now = 0

    def add(self, ids: Sequence[str]) -> None:
        self._client.zadd("tier:0", dict.fromkeys(ids, self._now), nx=True)

    def visit(self) -> None:
        self._now += 1
        while found := self._client.zrange("tier:0", "-inf", f"({self._now}", byscore=True, offset=0, num=50):
            self._client.zadd("tier:0", dict.fromkeys(found, self._now))

    def move(self, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), 50):
            with self._client.pipeline() as pipe:
                pipe.zrem("tier:0", *ids[start : start + 50])
                pipe.zadd("tier:1", dict.fromkeys(ids[start : start + 50], self._now))
                pipe.execute()

    def bytes(self) -> int:
        return int(self._client.info("memory")["used_memory_dataset"])

    def count(self) -> int:
        return int(self._client.zcard("tier:0") + self._client.zcard("tier:1"))


class ValkeySheets:
    """Sheets as values, sorted sets of sheets by time and by where they begin; without hashes also an index."""

    def __init__(self, client: Any, size: int, *, hashed: bool) -> None:
        self._client = client
        self._most = size
        self._hashed = hashed
        self._now = 0
        self._last = 0
        self._write({(0, 0): {}, (1, 0): {}})

    def _write(self, sheets: dict[tuple[int, int], Subjects]) -> None:
        with self._client.pipeline() as pipe:
            for (tier, lo), subjects in sheets.items():
                pipe.set(f"sheet:{tier}:{lo}", pack(subjects))
                pipe.zadd(f"sheets:{tier}", {lo: lo})
                pipe.zadd(f"due:{tier}", {lo: self._now})
            pipe.execute()

    def _los(self, tier: int, ids: Sequence[str]) -> list[int]:
        with self._client.pipeline() as pipe:
            for one in ids:
                if self._hashed:
                    pipe.zrange(f"sheets:{tier}", place(one), "-inf", byscore=True, desc=True, offset=0, num=1)
                else:
                    pipe.hget("places", one)
            return [int(found[0] if self._hashed else found) for found in pipe.execute()]

    def _sheets(self, tier: int, ids: Sequence[str]) -> dict[int, tuple[Subjects, list[str]]]:
        by_sheet = defaultdict(list)
        for one, lo in zip(ids, self._los(tier, ids), strict=True):
            by_sheet[lo].append(one)
        datas = self._client.mget([f"sheet:{tier}:{lo}" for lo in by_sheet])
        return {lo: (unpack(data), by_sheet[lo]) for lo, data in zip(by_sheet, datas, strict=True)}

    def add(self, ids: Sequence[str]) -> None:
        if self._hashed:
            for sheet, wanted in self._sheets(1, ids).values():
                assert not sheet.keys() & {*wanted}
        self._put(0, ids)

    def _put(self, tier: int, ids: Sequence[str]) -> None:
        if not self._hashed:
            self._append(tier, ids)
            return
        changed = {}
        for lo, (subjects, new) in self._sheets(tier, ids).items():
            parts = divided(lo, subjects | dict.fromkeys(new, (1, 0)), self._most)
            changed |= {(tier, begins): part for begins, part in parts.items()}
        self._write(changed)

    def _append(self, tier: int, ids: Sequence[str]) -> None:
        data = self._client.get(f"sheet:{tier}:{self._last}")
        subjects = unpack(data or b"") | dict.fromkeys(ids, (1, 0))
        self._client.hset("places", mapping=dict.fromkeys(ids, self._last))
        self._write({(tier, self._last): subjects})
        self._last += len(subjects) >= self._most

    def visit(self) -> None:
        self._now += 1
        while found := self._client.zrange("due:0", "-inf", f"({self._now}", byscore=True, offset=0, num=1):
            lo = int(found[0])
            self._write({(0, lo): unpack(self._client.get(f"sheet:0:{lo}"))})

    def move(self, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), 50):
            page = ids[start : start + 50]
            held = self._sheets(0, page)
            self._write(
                {(0, lo): {k: v for k, v in sheet.items() if k not in gone} for lo, (sheet, gone) in held.items()}
            )
            self._put(1, page)

    def bytes(self) -> int:
        return int(self._client.info("memory")["used_memory_dataset"])

    def count(self) -> int:
        keys = self._client.keys("sheet:*")
        return sum(len(unpack(data)) for data in self._client.mget(keys))
