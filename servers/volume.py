"""A volume of a given size, which can get full and larger."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CHUNK = 1024 * 1024


class Volume:
    """A file system in memory; whoever mounts it needs the right to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    @property
    def size(self) -> int:
        """Bytes in all."""
        found = os.statvfs(self.path)
        return found.f_blocks * found.f_frsize

    @property
    def free(self) -> int:
        """Bytes that are left."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self, leave: int = 0) -> None:
        """Take what is free, as somebody else's file would, but for ``leave`` bytes."""
        with self._ballast.open("ab", buffering=0) as file, suppress(OSError):
            while (free := self.free) > leave:
                file.write(bytes(min(_CHUNK, free - leave)))

    def enlarge(self, size: int) -> None:
        """Give it more room; what is on it stays."""
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.path)], check=True)


@contextmanager
def mounted(size: int) -> Iterator[Volume]:
    """A new volume that everybody can get to, gone afterwards. Raises ``PermissionError``."""
    with tempfile.TemporaryDirectory(prefix="headrace-volume-") as folder:
        os.chmod(folder, 0o755)
        path = Path(folder, "volume")
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PermissionError(f"a volume of its own needs the right to mount: run this as root ({done.stderr})")
        try:
            yield Volume(path)
        finally:
            subprocess.run(["umount", "--lazy", str(path)], check=True)
