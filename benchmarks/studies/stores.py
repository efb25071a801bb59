"""Stores for studies that ask the same of each of them, and one file for what all of them answered."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fleet import Servers
from benchmarks.server import STORES as DATABASES
from benchmarks.server import Kind, Server
from headrace import Streams

STORES = ("postgres", "sqlite", "valkey")
WITH_STREAMS = (*STORES, "streams")
"""For studies of what a store keeps: streams are PostgreSQL and Valkey."""
EVERY = ("memory", *WITH_STREAMS)


@dataclass(frozen=True)
class Fresh:
    """A store that nobody has used yet."""

    url: str
    server: Server | None
    database: str
    truth: str = ""
    """Of PostgreSQL and streams: the URL of the database."""

    def settle(self) -> None:
        """What a fill has left to be written is written."""
        if self.server is not None:
            self.server.settle(self.database)

    def cpu(self) -> float:
        """CPU seconds of its server so far."""
        return 0.0 if self.server is None else self.server.cpu()


@contextmanager
def fresh(store: str, servers: Servers, place: Path | None = None, kind: Kind = "plain") -> Iterator[Fresh]:
    """A new store of this kind, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="headrace-study-", dir=place) as folder:
        if store == "memory":
            yield Fresh("memory://", None, "")
        elif store == "sqlite":
            yield Fresh(f"sqlite:///{folder}/jobs.db", None, "")
        elif store == "streams":
            with fresh("postgres", servers, place, kind) as truth, fresh("valkey", servers, place, kind) as windows:
                url = Streams(pg=truth.url, valkey=windows.url).url
                yield Fresh(url, truth.server, truth.database, truth.url)
        else:
            server = servers.of(store, kind)
            with server.databases(Path(folder)) as database:
                url = Path(folder, f"{DATABASES[0]}.url").read_text()
                yield Fresh(url, server, database, url)


def keep(path: Path, store: str, machine: Mapping[str, object], found: Sequence[Mapping[str, Any]]) -> None:
    """Into the file, in the place of the same found on this store before; the rest stays.

    The line of a run says what kinds of lines it found.
    """
    known = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    kinds = {line["kind"] for line in found}
    lines = []
    for line in known:
        still = sorted({*line.get("found", [line["kind"]])} - (kinds if line["store"] == store else set()))
        if still:
            lines.append(line | {"found": still} if line["kind"] == "run" else line)
    lines.append({"kind": "run", "store": store, "found": sorted(kinds), "machine": machine})
    lines += [{"store": store, **line} for line in found]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")
