"""Situations that simulations must get into, again and again: a rare path that no seed takes is a path untested."""

FAULTS = tuple(
    f"fault: {kind}"
    for kind in (
        "drop", "mute", "double", "late", "slow", "cut", "hint drop", "hint double", "hint delay",
        "crash", "freeze", "thaw", "partition", "joined", "blackout", "skew", "leap", "retire",
    )
)  # fmt: skip
"""Everything that the network and the nemesis can do."""

SOMETIMES = (
    *("insert same", "insert duplicate", "insert done", "key taken again", "key held by a failed job"),
    *("key held by a job that was swept", "swept keys"),
    *("granted", "granted again", "paused queue passed over", "claim knows what is next"),
    *("expired by claim", "expired by reap", "passed over a job that was lost too often", "chosen to make room"),
    *("settled completed", "settled failed", "settled available", "settled paused", "settled cancelled"),
    *("fenced off", "spawned new", "spawned duplicate", "spawned done"),
    *("renewed", "renewed past its expiry", "lost lease told", "cancel request told"),
    *("reaped available", "reaped failed", "reaped cancelled", "absence spared the job"),
    *("cancel available", "cancel paused", "cancel running", "cancel refused", "cancel request outlived a retry"),
    *("pause available", "resume paused", "queue paused", "move available", "move refused"),
    *("requeue completed", "requeue cancelled", "requeue failed", "requeue refused"),
    *("hold completed", "hold refused", "delete available", "delete completed", "reprioritise available"),
    *("swept completed", "swept cancelled", "swept failed", "swept results", "dry run"),
    *("dead letters were shared",),
    *("wait answered", "wait answered with an error", "wait timed out", "wait for a job that is gone"),
    *("runs overlap after a lost lease", "watch running"),
)
"""Everything that the rules of the checker have seen happen and thought worth a name."""

RULING = (
    *("policy saved", "policy changed by another", "tenant limited", "tenants listed"),
    *("tenant paused", "tenant resumed", "task paused", "task resumed"),
    *("tenants took turns", "a group had its turn", "insert full"),
)
"""The same where there are rules."""

TICKING = (
    *("slot fired", "slot skipped", "slot missed", "slots fired out of turn", "slot had fired before"),
    *("one slot missed", "several slots missed", "late slot fired for all", "job before cancelled"),
    *("plan came too late", "schedule changed by another", "tick noted"),
)
"""The same where there are schedules."""
