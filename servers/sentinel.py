"""A primary, its replica, and sentinels that watch over them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from servers.process import free_ports
from servers.valkey import Refused, Valkey, wait_until

MASTER = "jobs"
_PATIENCE = 60.0
"""Seconds. A sentinel that the machine has kept from working does nothing for thirty."""
_SETTINGS = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}
_BRISK = ("info-period", 300, "publish-period", 200, "ask-period", 100, "ping-period", 200)
"""What sentinels take seconds for by themselves: to look, and to tell each other."""


class Sentinel:
    """Started with the object. ``primary`` and ``replica`` change places with every failover."""

    def __init__(
        self,
        root: Path | str | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        sentinels: int = 1,
        down_after: int = 300,
    ) -> None:
        first, second, *watching = free_ports(2 + sentinels)
        given = _SETTINGS | dict(settings or {})
        self.primary = Valkey(root, given, port=first)
        self.replica = Valkey(root, given, port=second)
        quorum = sentinels // 2 + 1
        self.sentinels = [_Watcher(root, port, first, quorum, down_after) for port in watching]
        try:
            self.primary.start()
            self.replica.start()
            self.replica.call("REPLICAOF", "127.0.0.1", first)
            self.catch_up()
            for sentinel in self.sentinels:
                sentinel.start()
            self._settle()
        except BaseException:
            self.close()
            raise

    def url(self, database: int = 0) -> str:
        """Where it is."""
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)
        return f"redis+sentinel://{hosts}/{database}?master={MASTER}"

    def failover(self, *, kill: bool = True) -> None:
        """Let the replica become the primary, because that is killed or (``kill=False``) because the sentinels are
        asked to: then the old primary lives on as a replica, with its connections. Waits until all sentinels know."""
        old, new = self.primary, self.replica
        if kill:
            old.kill()
        else:
            wait_until(self.sentinels[0].promotes, _PATIENCE, "the sentinel finds the replica good enough")
        wait_until(
            lambda: new.info("replication")["role"] == "master" and all(one.sees(new.port) for one in self.sentinels),
            _PATIENCE,
            "the replica is promoted",
        )
        self.primary, self.replica = new, old
        if not kill:
            self._settle()

    def rejoin(self) -> None:
        """Start the old primary again, and wait until it follows the new one."""
        self.replica.start()
        self._settle()

    def _settle(self) -> None:
        """Wait until all is well, and every sentinel knows it."""
        others = len(self.sentinels) - 1
        wait_until(
            lambda: self._in_step() and all(one.ready(others) for one in self.sentinels), _PATIENCE, "all is well"
        )

    def catch_up(self) -> None:
        """Wait until the replica has all that the primary has acknowledged by now."""
        wait_until(self._in_step, _PATIENCE, "the replica has caught up")

    def _in_step(self) -> bool:
        said = int(self.primary.info("replication")["master_repl_offset"])
        found = self.replica.info("replication")
        heard = int(found.get("slave_repl_offset", -1))
        return (found["role"], found.get("master_link_status")) == ("slave", "up") and heard >= said

    def close(self) -> None:
        """End all, and remove all that they have."""
        for server in (*self.sentinels, self.primary, self.replica):
            server.close()


class _Watcher(Valkey):
    """One sentinel: a server with a configuration file, which it rewrites."""

    def __init__(self, root: Path | str | None, port: int, primary: int, quorum: int, down_after: int) -> None:
        super().__init__(root, port=port)
        self._file = Path(self.directory, "sentinel.conf")
        lines = (
            f"port {port}",
            "bind 127.0.0.1",
            f"dir {self.directory}",
            f"sentinel monitor {MASTER} 127.0.0.1 {primary} {quorum}",
            f"sentinel down-after-milliseconds {MASTER} {down_after}",
            f"sentinel failover-timeout {MASTER} 3000",
        )
        self._file.write_text("\n".join(lines) + "\n")

    def _command(self) -> list[str]:
        return [self.binary, str(self._file), "--sentinel"]

    def start(self) -> None:
        super().start()
        with suppress(Refused):  # servers that cannot be hurried
            self.call("SENTINEL", "DEBUG", *_BRISK)

    def ready(self, others: int) -> bool:
        """Whether it knows the replica and the other sentinels."""
        flat = self.call("SENTINEL", "MASTER", MASTER)
        found = dict(zip(flat[::2], flat[1::2], strict=True))
        replicas = self.call("SENTINEL", "REPLICAS", MASTER)
        fine = [dict(zip(one[::2], one[1::2], strict=True))[b"flags"] == b"slave" for one in replicas]
        return fine == [True] and int(found[b"num-other-sentinels"]) == others and found[b"flags"] == b"master"

    def promotes(self) -> bool:
        """Ask it for a failover; False where it does not trust the replica yet."""
        try:
            self.call("SENTINEL", "FAILOVER", MASTER)
        except Refused as error:
            if "NOGOODSLAVE" not in str(error):
                raise
            return False
        return True

    def sees(self, port: int) -> bool:
        """Whether it takes the server at this port for the primary."""
        _, found = self.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
        return int(found) == port
