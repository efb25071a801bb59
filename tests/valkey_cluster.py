"""One Valkey cluster per test process, and blank stores on it."""

from __future__ import annotations

import functools
from pathlib import Path

from servers.valkey_cluster import ValkeyCluster

from headrace.backends.redis import ClusterBackend, parse
from tests.ending import over

_PATIENT = {"cluster-node-timeout": "30000"}
"""No test wants a failover of it, and a busy machine makes none."""


@functools.cache
def cluster() -> ValkeyCluster:
    """The cluster of this process."""
    valkey = ValkeyCluster(settings=_PATIENT)
    over.callback(valkey.close)
    return valkey


class Stores:
    """Each place has a store of its own, which is blank at first; only that of the last place is there."""

    def __init__(self) -> None:
        self._place: Path | None = None

    def connect(self, place: Path) -> ClusterBackend:
        """A new, unopened backend on the store that belongs to ``place``."""
        if place != self._place:
            self._place = place
            cluster().flush()
        return ClusterBackend(parse(cluster().url(), {}, "valkey"))


stores = Stores()
