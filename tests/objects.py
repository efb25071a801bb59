"""One S3 server per test process."""

from __future__ import annotations

import atexit
import functools

from servers.seaweedfs import SeaweedFS


@functools.cache
def server() -> SeaweedFS:
    """The server of this process."""
    seaweed = SeaweedFS()
    atexit.register(seaweed.close)
    seaweed.start()
    return seaweed
