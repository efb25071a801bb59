"""Archivers that kill themselves: ``python -m chaos.archive_scene URL VAULT PAGE DEATHS SEED``.

Each is a process that dies with SIGKILL right before, or right after, one of its calls of the store or the object
store; which one is drawn. Prints how many died, by call.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

from headrace import connect
from headrace.api.client import Client
from headrace.api.connection import open_backend
from headrace.payloads.object_url import parse
from headrace.payloads.objects import Objects
from headrace.seam.protocol import Backend
from headrace.seam.records import Stamp
from headrace.testing.wrapped import Carry, Wrapped
from headrace.vault.archiver import Archiver
from headrace.vault.catalog import Catalog
from headrace.vault.tables import arrow

T = TypeVar("T")
CALLS = 10
"""More than a page takes."""


class Fuse:
    """Ends this process at one of the calls."""

    def __init__(self, number: int, *, after: bool) -> None:
        self._left = number
        self._after = after

    async def burn(self, name: str, carry: Any) -> Any:
        self._left -= 1
        if self._left:
            return await carry
        found = await carry if self._after else None
        os.write(1, f"{name}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
        return found


class Fatal(Wrapped):
    """A store whose user dies at one of its calls."""

    def __init__(self, inner: Backend, fuse: Fuse) -> None:
        super().__init__(inner)
        self._fuse = fuse

    async def _call(self, name: str, args: tuple[Any, ...], at: Stamp, carry: Carry[T]) -> T:
        found: T = await self._fuse.burn(name, carry(at))
        return found


class FatalObjects(Objects):
    """The same of an object store."""

    def __init__(self, url: str, fuse: Fuse) -> None:
        super().__init__(parse(url))
        self._fuse = fuse

    async def create(self, key: str, body: bytes) -> bool:
        return bool(await self._fuse.burn("objects.create", super().create(key, body)))

    async def delete(self, keys: Sequence[str]) -> None:
        if keys:
            await self._fuse.burn("objects.delete", super().delete(keys))


async def archive(url: str, vault: str, page: int, fuse: Fuse) -> None:
    """Put together what others have written, and archive, until the fuse has burnt down or all is archived."""
    backend = Fatal(open_backend(url), fuse)
    client = Client(backend, connect(url, vault={"url": vault, "page": page}).settings)
    await backend.inner.open()
    objects = FatalObjects(vault, fuse)
    await Catalog(objects).compact(client.clock.now())
    archiver = Archiver(backend, objects, client.clock, client.rng, client.observers, client.settings.vault)
    await archiver.archive()


def died(url: str, vault: str, page: int, number: int, *, after: bool) -> str:
    """At which call a process died; empty: it did not."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(write, 1)
        os.close(read)
        asyncio.run(archive(url, vault, page, Fuse(number, after=after)))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        name = told.read().strip()
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError(f"an archiver ended with {os.WEXITSTATUS(status)} instead of being killed")
    return name if os.WIFSIGNALED(status) else ""


def main() -> None:
    url, vault, page, deaths, seed = sys.argv[1:]
    rng, found = Random(int(seed)), Counter[str]()
    arrow()  # once, for all of them
    for turn in range(int(deaths)):
        after = bool(turn % 2)
        if name := died(url, vault, int(page), rng.randint(1, CALLS), after=after):
            found[f"{'after' if after else 'before'} {name}"] += 1
    print(json.dumps(found))


if __name__ == "__main__":
    main()
