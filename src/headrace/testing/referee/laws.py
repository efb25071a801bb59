"""The laws that a referee watches over, and what he does when one is broken."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from headrace.seam.records import JobId


class Law(StrEnum):
    LIMITS = "limits"
    """Caps, tokens, rates, and pauses."""
    TURNS = "turns"
    """Tenants take turns, and nobody waits for what he may have."""
    ORDER = "order"
    """What is given out is due, and in its order within its tenant."""
    GROUPS = "groups"
    """The jobs of a group run in their order, and no more at once than it has turns."""
    DEPTH = "depth"
    """As many jobs wait as may, and no more."""
    LEASES = "leases"
    """Leases begin and end as they must."""


Objection = Callable[[Law, JobId | None, str], None]
"""What is done about a law that was broken: which, by which job, and how."""


def stop(law: Law, job_id: JobId | None, message: str) -> None:
    """Play ends here."""
    raise AssertionError(f"{law}: {message}")
