"""A real cluster of Valkey servers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from servers.process import free_ports
from servers.valkey import Valkey, wait_until

SLOTS = 16_384
_PATIENCE = 60.0
_SETTINGS = {
    "cluster-enabled": "yes",
    "cluster-config-file": "nodes.conf",
    "cluster-node-timeout": "1000",
    "cluster-replica-validity-factor": "0",
    "repl-diskless-sync-delay": "0",
}
_AT_ONCE = 100


class ValkeyCluster:
    """Primaries that share the slots out evenly, and ``replicas`` for each: ``nodes`` has the primaries of the start
    first, then the replicas in the order of theirs. Started with the object."""

    server: type[Valkey] = Valkey

    def __init__(
        self,
        root: Path | str | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        primaries: int = 3,
        replicas: int = 0,
    ) -> None:
        self._primaries = primaries
        count = primaries * (1 + replicas)
        ports = free_ports(2 * count)
        given = _SETTINGS | dict(settings or {})
        self._buses = ports[count:]
        self.nodes = [
            self.server(root, given | {"cluster-port": str(bus)}, port=port)
            for port, bus in zip(ports, self._buses, strict=False)
        ]
        try:
            for node in self.nodes:
                node.start()
            self.ids = [node.call("CLUSTER", "MYID").decode() for node in self.nodes]
            self._form()
        except BaseException:
            self.close()
            raise

    def _form(self) -> None:
        for i, node in enumerate(self.nodes):
            node.call("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            if i < self._primaries:
                first, last = SLOTS * i // self._primaries, SLOTS * (i + 1) // self._primaries - 1
                node.call("CLUSTER", "ADDSLOTSRANGE", first, last)
        for node in self.nodes:
            for other, bus in zip(self.nodes, self._buses, strict=True):
                if other is not node:
                    node.call("CLUSTER", "MEET", "127.0.0.1", other.port, bus)
        everybody = set(self.ids)
        wait_until(
            lambda: all(everybody <= self._known(node) for node in self.nodes), _PATIENCE, "each node knows all others"
        )
        for i in range(self._primaries, len(self.nodes)):
            self.nodes[i].call("CLUSTER", "REPLICATE", self.ids[i % self._primaries])
        self.wait()

    def _known(self, node: Valkey) -> set[str]:
        lines = node.call("CLUSTER", "NODES").decode().splitlines()
        return {line.split()[0] for line in lines if "handshake" not in line}

    def url(self) -> str:
        """Where it is."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[: self._primaries])
        return f"redis+cluster://{hosts}"

    def wait(self) -> None:
        """Wait until every node that runs finds the cluster whole, and its replica in step."""
        wait_until(lambda: all(map(self._fine, self._running())), _PATIENCE, "the cluster is whole")

    def _running(self) -> list[Valkey]:
        return [node for node in self.nodes if node.running]

    def _fine(self, node: Valkey) -> bool:
        said = node.call("CLUSTER", "INFO").decode()
        replication = node.info("replication")
        link = replication.get("master_link_status", "up")
        return "cluster_state:ok" in said and "cluster_slots_ok:16384" in said and link == "up"

    def flush(self) -> None:
        """Remove every key."""
        for node in self._running():
            if node.info("replication")["role"] == "master":
                node.call("FLUSHALL")

    def owner(self, slot: int) -> int:
        """The number of the node that has the slot."""
        for first, last, (_, port, *_), *_ in self._running()[0].call("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return [node.port for node in self.nodes].index(port)
        raise LookupError(f"nobody has slot {slot}")

    # -- a slot that moves

    def move_slot(self, slot: int, to: int) -> None:
        """Give the slot with all its keys to another primary, while clients go on."""
        self.begin_move(slot, to)
        self.move_keys(slot, to)
        self.end_move(slot, to)

    def begin_move(self, slot: int, to: int) -> None:
        """From now on its keys may be on either of the two."""
        source = self.owner(slot)
        self.nodes[to].call("CLUSTER", "SETSLOT", slot, "IMPORTING", self.ids[source])
        self.nodes[source].call("CLUSTER", "SETSLOT", slot, "MIGRATING", self.ids[to])

    def move_keys(self, slot: int, to: int, limit: int | None = None) -> int:
        """Bring keys over, all or so many; how many it were."""
        source = self.nodes[self.owner(slot)]
        moved = 0
        while limit is None or moved < limit:
            count = _AT_ONCE if limit is None else min(_AT_ONCE, limit - moved)
            keys = source.call("CLUSTER", "GETKEYSINSLOT", slot, count)
            if not keys:
                break
            source.call("MIGRATE", "127.0.0.1", self.nodes[to].port, "", 0, 10_000, "KEYS", *keys)
            moved += len(keys)
        return moved

    def end_move(self, slot: int, to: int) -> None:
        """From now on it is the other's alone."""
        source = self.nodes[self.owner(slot)]
        others = [node for node in self._running() if node not in (source, self.nodes[to])]
        for node in (self.nodes[to], source, *others):
            if node.info("replication")["role"] == "master":
                node.call("CLUSTER", "SETSLOT", slot, "NODE", self.ids[to])
        wait_until(lambda: all(self._gives(node, slot, to) for node in self._running()), _PATIENCE, "all know of it")

    def _gives(self, node: Valkey, slot: int, to: int) -> bool:
        for first, last, (_, port, *_), *_ in node.call("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return bool(port == self.nodes[to].port)
        return False

    # -- nodes that go and come

    def kill(self, number: int) -> None:
        """As the kernel would."""
        self.nodes[number].kill()

    def start(self, number: int) -> None:
        """Start it again, and wait until the cluster is whole."""
        self.nodes[number].start()
        self.wait()

    def failover(self, number: int, *, kill: bool = True) -> int:
        """Let a replica of the primary take over, because it is killed or (``kill=False``) because it is asked to; the
        number of the new primary."""
        replicas = [i for i, node in enumerate(self.nodes) if node.running and self._follows(node, number)]
        if not replicas:
            raise LookupError(f"node {number} has no replica")
        if kill:
            self.kill(number)
        else:
            self.nodes[replicas[0]].call("CLUSTER", "FAILOVER")
        new: list[int] = []

        def promoted() -> bool:
            new.extend(i for i in replicas if self.nodes[i].info("replication")["role"] == "master")
            return bool(new)

        wait_until(promoted, _PATIENCE, f"a replica of node {number} takes over")
        self.wait()
        return new[0]

    def _follows(self, node: Valkey, number: int) -> bool:
        found = node.info("replication")
        return found["role"] == "slave" and found["master_port"] == str(self.nodes[number].port)

    def close(self) -> None:
        """End all, and remove all that they have."""
        for node in self.nodes:
            node.close()
