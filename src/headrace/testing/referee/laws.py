"""The laws that a referee watches over, and what it does when one is broken."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from headrace.seam.records import JobId


class Law(StrEnum):
    LIMITS = "limits"
    """Limits, rates and pauses hold."""
    TURNS = "turns"
    """Tenants take turns, and nobody waits for jobs that it may have."""
    ORDER = "order"
    """Jobs that are given out are due, and in the order of their tenant."""
    GROUPS = "groups"
    """The jobs of a group run in their order, and no more at once than may be called."""
    DEPTH = "depth"
    """As many jobs wait as may, and no more."""
    LEASES = "leases"
    """Leases begin and end as they must."""


Objection = Callable[[Law, JobId | None, str], None]
"""What to do about a broken law: which, by which job, and how."""


def stop(law: Law, job_id: JobId | None, message: str) -> None:
    """Stop here."""
    raise AssertionError(f"{law}: {message}")
