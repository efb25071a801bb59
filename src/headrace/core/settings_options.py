"""The settings as ``App(…)`` and ``connect(…)`` take them: by name, and nested as dicts, for type checkers.

``tests/unit/test_config.py`` checks that they name what :mod:`headrace.core.config` has, and nothing else.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from headrace.core import config as c
from headrace.types import Duration


class WorkerOptions(TypedDict, total=False):
    """See ``WorkerSettings``."""

    concurrency: int
    prefetch: int
    lease: Duration
    poll: Duration
    poll_blind: Duration
    reap: Duration
    max_lost: int
    max_bytes: int
    grace: Duration
    name: str
    executor: Literal["thread", "process"]
    max_jobs_per_child: int | None
    max_memory_per_child: int | None


class SealingOptions(TypedDict, total=False):
    """See ``SealingSettings``."""

    keys: str | None
    read_unsealed: bool
    reseal: Duration | None


class CompressOptions(TypedDict, total=False):
    """See ``Compress``."""

    parameters: bool
    vm_state: bool
    metadata: bool
    blob: bool
    result: bool


class PayloadOptions(TypedDict, total=False):
    """See ``PayloadSettings``."""

    max_size: int
    compress_over: int | None
    compress: c.Compress | CompressOptions
    sealing: c.SealingSettings | SealingOptions


class OffloadOptions(TypedDict, total=False):
    """See ``Offload``."""

    over: int | None
    delay: Duration | None
    dead_letters: bool
    least: int


class ObjectOptions(TypedDict, total=False):
    """See ``ObjectSettings``."""

    url: str | None
    parameters: c.Offload | OffloadOptions
    vm_state: c.Offload | OffloadOptions
    metadata: c.Offload | OffloadOptions
    blob: c.Offload | OffloadOptions
    keep: Duration
    grace: Duration
    every: Duration


class KeepOptions(TypedDict, total=False):
    """See ``Keep``."""

    age: Duration | None
    count: int | None
    bytes: int | None


class SafetyOptions(TypedDict, total=False):
    """See ``SafetySettings``."""

    share: float
    floor: int
    gap: Duration


class RetentionOptions(TypedDict, total=False):
    """See ``RetentionSettings``."""

    every: Duration
    completed: c.Keep | KeepOptions
    cancelled: c.Keep | KeepOptions
    failed: c.Keep | KeepOptions
    ticks: c.Keep | KeepOptions
    keys: int
    removals: int
    safety: c.SafetySettings | SafetyOptions


class VaultOptions(TypedDict, total=False):
    """See ``VaultSettings``."""

    url: str | None
    every: Duration
    page: int


class PlannerOptions(TypedDict, total=False):
    """See ``PlannerSettings``."""

    every: Duration
    ahead: Duration
    batch: int
    share: int
    shares: int


class HttpOptions(TypedDict, total=False):
    """See ``HttpSettings``."""

    address: str | None
    tokens: str | None
    writes: bool
    redaction: Literal["nothing", "secrets", "all"]
    hosts: tuple[str, ...]


class AlertOptions(TypedDict, total=False):
    """See ``AlertSettings``."""

    every: Duration
    oldest: Duration
    oldest_critical: Duration
    unattended: Duration
    running: int
    window: Duration
    dead_letters: int
    failure_ratio: float
    attempts: int
    store_bytes: int | None
    vault_lag: Duration
    webhook: str | None


class SettingsOptions(TypedDict, total=False):
    """All settings but the URL, which has a parameter of its own."""

    replica_url: str | None
    result_ttl: Duration
    patience: Duration
    worker: c.WorkerSettings | WorkerOptions
    payloads: c.PayloadSettings | PayloadOptions
    objects: c.ObjectSettings | ObjectOptions
    retention: c.RetentionSettings | RetentionOptions
    vault: c.VaultSettings | VaultOptions
    planner: c.PlannerSettings | PlannerOptions
    http: c.HttpSettings | HttpOptions
    alerts: c.AlertSettings | AlertOptions
