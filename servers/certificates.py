"""Certificates for servers and clients of the loopback, made by the ``openssl`` program."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")


class Certificates:
    """An authority of our own in a temporary directory, and what it signs."""

    def __init__(self, root: Path | str | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="headrace-tls-", dir=root))
        self.ca = self.directory / "ca.pem"
        self._openssl(
            "req", "-x509", *_CURVE, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=our authority",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip

    def issue(self, name: str, *hosts: str) -> tuple[Path, Path]:
        """A certificate under a name, for ``hosts`` (``IP:127.0.0.1``, ``DNS:localhost``) or for a client, and its
        key."""
        self._openssl("req", "-new", *_CURVE, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        lines = ["basicConstraints=CA:FALSE", "subjectKeyIdentifier=hash", "authorityKeyIdentifier=keyid"]
        if hosts:
            lines.append(f"subjectAltName={','.join(hosts)}")
        (self.directory / f"{name}.ext").write_text("\n".join(lines) + "\n")
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-out", f"{name}.pem", "-extfile", f"{name}.ext",
        )  # fmt: skip
        return self.directory / f"{name}.pem", self.directory / f"{name}.key"

    def close(self) -> None:
        """Remove them."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _openssl(self, *args: str) -> None:
        done = subprocess.run(["openssl", *args], cwd=self.directory, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"openssl {args[0]} failed:\n{done.stderr}")
