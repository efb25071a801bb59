"""One S3 server per test process."""

from __future__ import annotations

import functools

from servers.seaweedfs import SeaweedFS

from tests.ending import over


@functools.cache
def server() -> SeaweedFS:
    """The server of this process."""
    seaweed = SeaweedFS()
    over.callback(seaweed.close)
    seaweed.start()
    return seaweed
