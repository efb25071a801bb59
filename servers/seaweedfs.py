"""A real S3 server, SeaweedFS, from a wheel."""

from __future__ import annotations

import http.client
import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode

from obstore.exceptions import BaseError
from obstore.store import S3Store

from servers.process import free_ports
from servers.server import Server

BINARY = str(Path(sys.executable).with_name("weed"))
BUCKET = "headrace-test"
ACCESS_KEY, SECRET_KEY = "headrace", "hunter2-of-the-object-store"
_IDENTITIES = {
    "identities": [
        {
            "name": "headrace",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        },
        {
            "name": "reader",
            "credentials": [{"accessKey": "reader", "secretKey": SECRET_KEY}],
            "actions": ["Read", "List"],
        },
    ]
}
_PORTS = ("s3.port", "s3.port.grpc", "filer.port", "filer.port.grpc", "master.port", "master.port.grpc",
          "volume.port", "volume.port.grpc", "admin.port", "admin.port.grpc", "metricsPort")  # fmt: skip
_SETTINGS = {
    "ip": "127.0.0.1",
    "ip.bind": "127.0.0.1",
    "bucket": BUCKET,
    "s3.autoCreateBucket": "false",
    "admin.ui": "false",
    "webdav": "false",
    "s3.port.iceberg": "0",
    "s3.port.lance": "0",
    "master.telemetry": "false",
    "master.volumeSizeLimitMB": "64",
    "volume.max": "32",
}
_REQUESTS = re.compile(rf'^SeaweedFS_s3_request_total{{.*bucket="{BUCKET}".*}} (\S+)$', re.MULTILINE)


class SeaweedFS(Server):
    """One server, with one bucket."""

    def __init__(self, root: Path | str | None = None) -> None:
        super().__init__("s3", root)
        self._ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        self.port = self._ports["s3.port"]
        Path(self.directory, "identities.json").write_text(json.dumps(_IDENTITIES))

    @property
    def endpoint(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def url(self, prefix: str = "", *, bucket: str = BUCKET, **options: str) -> str:
        """A part of the bucket, with credentials that may do everything."""
        given = {"endpoint": self.endpoint, "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY} | options
        return f"s3://{bucket}/{prefix}?{urlencode(given)}"

    def requests(self) -> int:
        """How many requests for objects it has answered since it started."""
        line = http.client.HTTPConnection("127.0.0.1", self._ports["metricsPort"], timeout=10)
        try:
            line.request("GET", "/metrics")
            told = line.getresponse().read().decode()
        finally:
            line.close()
        return sum(int(float(count)) for count in _REQUESTS.findall(told))

    def _command(self) -> list[str]:
        here = {
            "dir": self.directory,
            "s3.config": os.path.join(self.directory, "identities.json"),
            "s3.localSocket": os.path.join(self.directory, "s3.sock"),
            "filer.localSocket": os.path.join(self.directory, "filer.sock"),
        }
        options = _SETTINGS | {name: str(port) for name, port in self._ports.items()} | here
        return [BINARY, "mini", *(f"-{name}={value}" for name, value in options.items())]

    def _answers(self) -> bool:
        keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "endpoint": self.endpoint}
        bucket = S3Store(BUCKET, config=keys, client_options={"allow_http": True}, retry_config={"max_retries": 0})
        with suppress(OSError, BaseError):
            bucket.put("started", b"yes")
            return bucket.get("started").bytes() == b"yes"
        return False
