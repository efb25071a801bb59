"""Facts about a server for operators: what survives a crash, and how much room there is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from headrace.backends.redis.endpoint import Endpoint
from headrace.backends.redis.marshalling import tuples
from headrace.backends.redis.opening import read_info
from headrace.backends.redis.translate import Refused

SETTINGS = ("appendfsync", "save")
"""Settings that CONFIG GET returns and INFO does not."""
_APPENDONLY = "CONFIG SET appendonly yes, and the same in its configuration"
_FSYNC = {
    "always": "what was acknowledged is on the disk",
    "everysec": "a crash of the machine may lose what was acknowledged in the last two seconds; a server process that "
    "is killed usually loses nothing",
    "no": "a crash of the machine may lose what was acknowledged in the last half minute",
}
_LESS = (
    "a larger maxmemory, or on the workers smaller HEADRACE_RETENTION__COMPLETED__BYTES, …__CANCELLED__BYTES and "
    "…__FAILED__BYTES"
)
_DISK = "check its free disk space and its log"
_LOGGED = 128
"""How many entries of the slow log are read."""
_LONG = 50_000
"""Microseconds: no script should take longer."""
_FULL = 0.9
_ROOM = 1.25
"""The memory should be this many times the bytes of ended jobs that are kept: these bytes do not count the server's
overhead per job, and other jobs need room too."""


class Fact(NamedTuple):
    """One fact: ``ok``, ``warn`` or ``fail``, on one subject."""

    level: str
    check: str
    what: str
    advice: str = ""


def transport(endpoint: Endpoint) -> list[Fact]:
    """What can be overheard on the way to the servers in the URL."""
    if not any(map(endpoint.in_clear, endpoint.addresses)):
        return []
    what = "plaintext=yes: everything sent to another machine is unencrypted, the password too"
    return [Fact("warn", "transport", what, f"write {endpoint.twin} if the server speaks TLS")]


async def facts(
    call: Callable[..., Awaitable[Any]], kept: int = 0, names: Mapping[bytes, str] = MappingProxyType({})
) -> list[Fact]:
    """The facts about one server; ``kept`` is how many bytes of ended jobs may be kept there, ``names`` are the names
    of our scripts by digest."""
    info = read_info(await call("INFO"))
    settings: dict[str, str] = {}
    try:
        for name in SETTINGS:
            flat = await call("CONFIG", "GET", name)
            settings |= {name.decode(): value.decode() for name, value in tuples(flat, 2)}
    except Refused:
        settings = {}
    try:
        slow = slow_scripts(await call("SLOWLOG", "GET", _LOGGED), names)
    except Refused:
        slow = []
    return [*examine(info, settings, kept), *slow]


def durable(info: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """One phrase for people: what survives what."""
    if info.get("aof_enabled") == "1":
        fsync = settings.get("appendfsync", "")
        said = _FSYNC.get(fsync)
        return f"append-only file, appendfsync {fsync}: {said}" if said else "append-only file"
    if settings.get("save") == "":
        return "neither append-only file nor snapshots: nothing survives a restart"
    return "no append-only file: a crash loses all that was acknowledged since the last snapshot"


def examine(info: Mapping[str, str], settings: Mapping[str, str], kept: int = 0) -> list[Fact]:
    """The facts that INFO and CONFIG GET give; ``settings`` is empty if the user may not run CONFIG GET."""
    return [_server(info), *_persistence(info, settings), *_memory(info, kept)]


def room(info: Mapping[str, str]) -> list[Fact]:
    """Which server it is, and its memory: for one whose memory may be lost."""
    return [_server(info), *_memory(info, 0)]


def slow_scripts(log: Sequence[Sequence[Any]], names: Mapping[bytes, str]) -> list[Fact]:
    """Our own scripts that blocked the server for long, according to its slow log."""
    longest: dict[str, int] = {}
    for _, _, micros, words, *_ in log:
        name = names.get(words[1]) if len(words) > 1 else None
        if name is not None and micros > _LONG:
            longest[name] = max(longest.get(name, 0), micros)
    if not longest:
        return []
    slow = ", ".join(f"{name} {micros / 1000:.0f} ms" for name, micros in sorted(longest.items()))
    advice = (
        "a slow script blocks all clients: give the server a core of its own and memory that is not swapped; if it "
        "has both, report the operation and how many jobs, queues and tenants there are"
    )
    return [Fact("warn", "scripts", f"slow lately, according to SLOWLOG: {slow}", advice)]


def _server(info: Mapping[str, str]) -> Fact:
    name = "valkey" if "valkey_version" in info else "redis"
    role = "replica" if info.get("role") == "slave" else "primary"
    mode = " in a cluster" if info.get("cluster_enabled") == "1" else ""
    count = info.get("connected_slaves", "0")
    replicas = {"0": "no replica", "1": "1 replica"}.get(count, f"{count} replicas")
    return Fact("ok", "server", f"{name} {info.get(f'{name}_version', '?')}, a {role}{mode}, {replicas}")


def _persistence(info: Mapping[str, str], settings: Mapping[str, str]) -> list[Fact]:
    found = [_durability(info, settings)]
    if info.get("aof_enabled") == "1" and info.get("aof_last_write_status") == "err":
        found.append(
            Fact("fail", "persistence", "the append-only file cannot be written: the server refuses to store", _DISK)
        )
    if info.get("rdb_last_bgsave_status") == "err":
        found.append(Fact("warn", "persistence", "the last snapshot failed: the server may refuse to store", _DISK))
    return found


def _durability(info: Mapping[str, str], settings: Mapping[str, str]) -> Fact:
    phrase = durable(info, settings)
    if info.get("aof_enabled") != "1":
        return Fact("warn", "persistence", phrase, _APPENDONLY)
    match settings.get("appendfsync"):
        case "always" | "everysec":
            return Fact("ok", "persistence", phrase)
        case None:
            advice = "+config|get in the user's ACL shows its appendfsync: everysec or always is what you want"
            return Fact("ok", "persistence", f"{phrase}; this user may not see more", advice)
    return Fact("warn", "persistence", phrase, "CONFIG SET appendfsync everysec, and the same in its configuration")


def _memory(info: Mapping[str, str], kept: int) -> list[Fact]:
    policy = info.get("maxmemory_policy", "?")
    found = [Fact("ok", "eviction", f"maxmemory-policy {policy}: the server evicts nothing")]
    if policy != "noeviction":
        advice = "CONFIG SET maxmemory-policy noeviction, and the same in its configuration"
        text = f"maxmemory-policy {policy}: the server evicts jobs when its memory is full"
        found = [Fact("fail", "eviction", text, advice)]
    used, bound = int(info.get("used_memory", "0")), int(info.get("maxmemory", "0"))
    if not bound:
        text = f"{_size(used)} used, no maxmemory: if the machine runs out of memory, the system kills the server"
        advice = "CONFIG SET maxmemory to what the machine can spare: then an enqueue fails with StoreFull instead"
        return [*found, Fact("warn", "memory", text, advice)]
    text = f"{_size(used)} of maxmemory {_size(bound)} used"
    if used >= _FULL * bound:
        advice = "more workers, a shorter retention, or a larger maxmemory: once it is full, enqueue is refused"
        return [*found, Fact("warn", "memory", text, advice)]
    if bound < _ROOM * kept:
        text += f", and retention may keep {_size(kept)} of ended jobs: they leave too little room for new ones"
        return [*found, Fact("warn", "memory", text, _LESS)]
    return [*found, Fact("ok", "memory", text)]


def _size(count: float) -> str:
    """
    >>> _size(512), _size(1_500_000), _size(3 << 30)
    ('512 B', '1.4 MiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
