"""The contract of :mod:`headrace.seam.protocol` as a pytest suite, for any backend.

A backend proves itself with a few lines::

    class TestMine(BackendConformance):
        capabilities = ("hints", "durable")

        def connect(self, place: Path) -> Backend:
            return MyBackend(place / "jobs")

``place`` is a fresh directory for each test; whatever the store is, two tests with different places must not see each
other. Tests that need a capability that is not named are not collected. Time is given as numbers (``at=``), so the
suite neither sleeps nor depends on the machine's speed.
"""

from headrace.testing.conformance.absence import AbsenceTests
from headrace.testing.conformance.alter import AlterTests
from headrace.testing.conformance.archive import ArchiveTests
from headrace.testing.conformance.chances import ChanceTests
from headrace.testing.conformance.claim import ClaimTests
from headrace.testing.conformance.depth import DepthTests
from headrace.testing.conformance.documents import DocumentTests
from headrace.testing.conformance.events import EventTests
from headrace.testing.conformance.finish import FinishTests
from headrace.testing.conformance.finish_and_claim import FinishAndClaimTests
from headrace.testing.conformance.groups import GroupTests
from headrace.testing.conformance.hints import HintTests
from headrace.testing.conformance.insert import InsertTests
from headrace.testing.conformance.journal import JournalTests
from headrace.testing.conformance.keys import KeyTests
from headrace.testing.conformance.lifecycle import LifecycleTests
from headrace.testing.conformance.limits import LimitTests
from headrace.testing.conformance.parts import PartTests
from headrace.testing.conformance.policies import PolicyTests
from headrace.testing.conformance.read import ReadTests
from headrace.testing.conformance.reap import ReapTests
from headrace.testing.conformance.references import ReferenceTests
from headrace.testing.conformance.renew import RenewTests
from headrace.testing.conformance.replace import ReplaceTests
from headrace.testing.conformance.sweep import SweepTests
from headrace.testing.conformance.tables import TableTests
from headrace.testing.conformance.ticks import TickTests
from headrace.testing.conformance.tracks import TrackTests
from headrace.testing.conformance.transfers import TransferTests
from headrace.testing.conformance.usage import UsageTests

__all__ = ["BackendConformance"]


class BackendConformance(
    LifecycleTests,
    InsertTests,
    KeyTests,
    ReplaceTests,
    ClaimTests,
    ChanceTests,
    FinishTests,
    FinishAndClaimTests,
    RenewTests,
    ReapTests,
    AbsenceTests,
    AlterTests,
    ReadTests,
    SweepTests,
    GroupTests,
    PolicyTests,
    LimitTests,
    DepthTests,
    TickTests,
    ReferenceTests,
    DocumentTests,
    ArchiveTests,
    TrackTests,
    TransferTests,
    TableTests,
    HintTests,
    EventTests,
    JournalTests,
    UsageTests,
    PartTests,
):
    """Every promise of the protocol; see the package docstring for its use."""
