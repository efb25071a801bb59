"""The loads whose bytes in the server's log are counted."""

from __future__ import annotations

from benchmarks.payload import SMALL, pad, sections

RETRIED = 10
"""Of so many jobs of the reference load, one is retried with a new ``vm_state``."""


class Load:
    """``small``: 200 B and no retries. ``random`` and ``json``: the reference load, which can be compressed or not."""

    def __init__(self, name: str) -> None:
        self.wide = name != "small"
        self._compressible = name == "json"

    def sections(self, number: int) -> dict[str, bytes]:
        """The sections of one job but its parameters."""
        if not self.wide:
            return {}
        return {name: body for name, body in self._all(number).items() if name != "parameters"}

    def parameters(self, number: int) -> dict[str, object]:
        """The arguments of one job."""
        size = len(self._all(number)["parameters"]) if self.wide else SMALL
        return {"n": number, "pad": pad(size)}

    def retried(self, number: int) -> bytes | None:
        """The ``vm_state`` that a job comes back with once; None if it succeeds at once."""
        return self._all(-number - 1)["vm_state"] if self.wide and number % RETRIED == 0 else None

    def payload(self, count: int) -> int:
        """Bytes that users hand over for so many jobs."""
        if not self.wide:
            return count * SMALL
        again = len(range(0, count, RETRIED))
        return count * sum(map(len, self._all(0).values())) + again * len(self._all(0)["vm_state"])

    def _all(self, number: int) -> dict[str, bytes]:
        return sections(number, compressible=self._compressible)
