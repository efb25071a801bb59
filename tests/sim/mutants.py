"""The planted bugs: each must be caught, by an invariant that names what it breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from headrace.backends.memory import MemoryBackend
from headrace.seam.protocol import Backend
from headrace.testing.sim.casts import CORE, RULES, SCRIPTED, TICKS
from headrace.testing.sim.scenarios import Cast
from tests.backends import planted_rules as rules
from tests.sim import broken_core as core
from tests.sim import broken_stores as stores
from tests.sim import broken_ticks as ticks
from tests.sim import broken_workers as workers
from tests.sim.broken_workers import main_of


class Mutant(Struct, frozen=True):
    """A system with one bug."""

    name: str
    invariant: str
    """The one that must be found broken; others may be as well."""
    store: Callable[[], Backend] = MemoryBackend
    cast: Cast = SCRIPTED
    patch: tuple[Any, str, Any] | None = None
    """Class, attribute and replacement, for bugs in the core."""


_STORES: dict[str, list[type[MemoryBackend]]] = {
    "I1": [stores.ReapLosesPoison, stores.SpawnsNothing, stores.BulkStopsAtDuplicate],
    "I2": [stores.SpawnsThoughFenced],
    "I3": [stores.ReapTakesLiveLeases, stores.ClaimGivesToTwo],
    "I4": [
        stores.FinishIgnoresEpoch,
        stores.FinishIgnoresHolder,
        stores.FinishRefusesExpiredLease,
        stores.RenewWithoutFence,
        stores.RenewRevivesLostLease,
    ],
    "I5": [stores.StaleWorkerOverwritesResult],
    "I6": [
        stores.ReapForgetsToCount,
        stores.ReapChargesAnAbsence,
        stores.ClaimKeepsEpoch,
        stores.RetryForgetsAttempt,
        stores.RequeueKeepsCounters,
    ],
    "I8": [stores.ClaimIgnoresPriority, stores.ClaimDropsOne],
    "I9": [stores.ClaimIgnoresRunAt, stores.ClaimStartsExpired],
    "I13": [
        stores.InsertNotIdempotent,
        stores.KeyLeaksAfterFail,
        stores.KeyLeaksAfterCancel,
        stores.KeyLetsTwoIn,
        stores.RequeueStealsKey,
        stores.MoveLeavesKeyBehind,
    ],
    "I14": [stores.CancelFlipsRunning, stores.CancelRequestLost, stores.CancelledJobRetried],
    "I15": [stores.ResultOutlivesTtl, stores.ResultMixedUp],
    "I16": [stores.DeleteTakesRunning],
    "I17": [stores.SweepTakesTheLiving, stores.SweepByAnotherClock, stores.DryRunIsWet],
    "I21": [stores.CountersDrift, stores.StatsCountDeadAsWaiting],
    "I22": [stores.ReapMissesOldLeases, stores.ClaimForgetsNextDue],
    "I23": [stores.DuplicateOverwritesPayload, stores.RetryLosesSections],
    "I26": [stores.ClaimIgnoresPause],
}
_WORKERS = {
    "I6": [workers.NeverGivesUp],
    "I7": [workers.RunsAgainWhenUnsure, workers.GuessesTheEpoch, workers.AcksEarly],
    "I22": [workers.HintsOnly, workers.NeverReaps],
}

_RULES: dict[str, list[type[MemoryBackend]]] = {
    "I11": [rules.OneHolderTooMany, rules.OneMoreRuns, rules.OneMoreOfATenantRuns, rules.PausedTasksRun],
    "I12": [rules.LostTokensStayTaken, rules.TheFullStayFull, rules.ATenantSleepsForItsLastTask],
    "I21": [rules.OneMoreWaits],
    "I27": [rules.RetriesGiveTheirTurnBack, rules.GroupsGoTwoByTwo],
}

MUTANTS = [
    *(Mutant(store.__name__, i, store=store) for i, found in _STORES.items() for store in found),
    *(Mutant(w.__name__, i, cast=Cast(worker=main_of(w))) for i, found in _WORKERS.items() for w in found),
    Mutant("NewIdOnRetry", "I13", cast=Cast(producer=workers.NewIdOnRetry)),
    *(Mutant(f"core: {name}", i, cast=CORE, patch=patch) for name, i, patch in core.PATCHES),
    *(Mutant(store.__name__, "I10", store=store, cast=TICKS) for store in ticks.STORES),
    *(Mutant(f"ticks: {name}", "I10", cast=TICKS, patch=patch) for name, patch in ticks.PATCHES),
    *(Mutant(store.__name__, i, store=store, cast=RULES) for i, found in _RULES.items() for store in found),
]
