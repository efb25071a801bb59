"""Checks of a server before a store is opened on it."""

from __future__ import annotations

from functools import partial

from headrace.backends.redis.connections import ClusterConnections, Connections
from headrace.backends.redis.endpoint import Endpoint, Mode
from headrace.backends.redis.rights import lacking
from headrace.backends.redis.translate import refusals
from headrace.errors import ConfigError, SchemaMismatch

_OLDEST = {"redis": (6, 2), "valkey": (7, 2)}
LAYOUT = "4"
"""The layout of the keys. A store with another one is refused."""


async def check(connections: Connections, base: str, endpoint: Endpoint) -> None:
    """Refuse servers that would lose jobs, or that cannot run the scripts."""
    with refusals(endpoint.where, base):
        facts = read_info(await connections.call(base, "INFO"))
        check_server(facts, endpoint, endpoint.where)
        await _check_rights(connections, base, endpoint)
        await _check_layout(connections, base, endpoint)


async def check_cluster(
    connections: ClusterConnections, base: str, endpoint: Endpoint, wanted: int | None, usual: int
) -> int:
    """Check every primary of a cluster. Returns how many shards the store has."""
    with refusals(endpoint.where, base):
        for address, connection in await connections.owners():
            check_server(read_info(await connection.call("INFO")), endpoint, f"{endpoint.where}: {address}")
        await _check_rights(connections, base, endpoint)
        await _check_layout(connections, base, endpoint)
        key = f"{base}:shards"
        await connections.call(base, "SETNX", key, usual if wanted is None else wanted)
        count = int(await connections.call(base, "GET", key))
    if wanted not in (None, count):
        raise ConfigError(
            f"{endpoint.where}: shards: the store was made with {count}, got {wanted}: the number cannot change; leave "
            "the option out, or use another prefix for a new store"
        )
    return count


async def _check_rights(connections: Connections, base: str, endpoint: Endpoint) -> None:
    missing = await lacking(partial(connections.call, base), base)
    if missing:
        raise ConfigError(
            f"{endpoint.where} refuses this user: it lacks rights that Headrace needs (NOPERM). Add to its ACL: "
            + " ".join(missing)
        )


async def _check_layout(connections: Connections, base: str, endpoint: Endpoint) -> None:
    found = await connections.call(base, "GET", f"{base}:v")
    if found is None:
        await connections.call(base, "SETNX", f"{base}:v", LAYOUT)
    elif found.decode() != LAYOUT:
        raise SchemaMismatch(
            f"{endpoint.where}: the store has the layout {found.decode()}, this release works with {LAYOUT}: "
            "use the release that made it, or another prefix"
        )


def read_info(text: bytes) -> dict[str, str]:
    """The fields of INFO."""
    pairs = (line.partition(":") for line in text.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in pairs if colon}


def version(facts: dict[str, str]) -> tuple[str, tuple[int, ...]]:
    """The kind of server, and its version."""
    name = "valkey" if "valkey_version" in facts else "redis"
    text = facts.get(f"{name}_version", "0")
    return name, tuple(int(part) for part in text.split(".") if part.isdigit())


def check_server(facts: dict[str, str], endpoint: Endpoint, where: str) -> None:
    """Refuse a server that would lose jobs, or that is not what the URL says."""
    if "sentinel" in (facts.get("server_mode"), facts.get("redis_mode")):
        raise ConfigError(
            f"{where}: expected a server that holds jobs, got a sentinel: its URL begins with redis+sentinel:// and "
            "has ?master=NAME"
        )
    name, found = version(facts)
    if found < _OLDEST[name]:
        oldest = ".".join(map(str, _OLDEST[name]))
        raise ConfigError(f"{where}: expected {name} {oldest} or newer, got {'.'.join(map(str, found))}")
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise ConfigError(
            f"{where}: expected maxmemory-policy noeviction, got {policy}: the server would evict jobs when "
            "its memory is full. CONFIG SET maxmemory-policy noeviction, and the same in its configuration"
        )
    if (facts.get("cluster_enabled") == "1") != (endpoint.mode is Mode.CLUSTER):
        expected, got = (
            ("a cluster", "a single server") if endpoint.mode is Mode.CLUSTER else ("one server", "a cluster")
        )
        scheme = "redis://" if endpoint.mode is Mode.CLUSTER else "redis+cluster://"
        raise ConfigError(f"{where}: expected {expected}, got {got}: its URL begins with {scheme}")
