"""Settings: frozen, nested by part, from keyword arguments over ``HEADRACE_*`` over TOML over defaults."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from headrace.core.durations import micros, spell
from headrace.core.environment import Length, from_env, parts_of
from headrace.core.numbers import check_whole
from headrace.errors import ConfigError
from headrace.text import shown, url_without_secrets


class AtLeast(NamedTuple):
    """The least that a setting may be; of a length, in microseconds."""

    least: int


Count = Annotated[int, AtLeast(0)]
Positive = Annotated[int, AtLeast(1)]
AnyLength = Annotated[Length, AtLeast(0)]
Interval = Annotated[Length, AtLeast(10_000)]
"""Of something that is repeated, or waited for: shorter ones would keep the process busy."""


class _Discreet(Struct, frozen=True):
    """Settings whose reprs, which end up in logs, have no secrets."""

    def _without_secrets(self) -> dict[str, Any]:
        """What is told instead of some values."""
        raise NotImplementedError

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        told = {name: getattr(self, name) for name in self.__struct_fields__}
        return list((told | self._without_secrets()).items())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class WorkerSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One worker process."""

    concurrency: Positive = 10
    """Jobs that run at the same time."""
    prefetch: Count = 500
    """At most this many leased jobs wait for a slot; how many do depends on how fast the handlers are."""
    lease: Interval = "30s"
    """A job is taken back when its worker has not been heard from for this long."""
    poll: Interval = "5s"
    """How often an idle worker looks for jobs without a hint."""
    poll_blind: Interval = "250ms"
    """The same on a store that gives no hints."""
    reap: Interval = "5s"
    """How often leases of vanished workers are looked for."""
    max_lost: Count = 2
    """A job lost more often than this in a row becomes a dead letter. On its last chance it runs alone."""
    max_bytes: Positive = 256 * 1024 * 1024
    """A worker whose jobs have sections of this many bytes in its memory claims no more until some have ended."""
    grace: AnyLength = "10s"
    """How long running jobs may go on after a stop is requested; then they are cancelled and requeued."""
    name: str = "host-pid"
    """The worker's name: ``host-pid``, ``hostname``, ``pod``, ``random``, or a name of your own."""
    executor: str = "thread"
    """Where plain functions run: ``thread`` or ``process``. Async functions always run on the loop."""
    max_jobs_per_child: Positive | None = None
    """A process that has run this many jobs of ``executor="process"`` tasks is replaced; None: never."""
    max_memory_per_child: Positive | None = None
    """A process that has more bytes than this in memory after a job is replaced; None: never."""


class SealingSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Encryption of payloads and results."""

    keys: str | None = None
    """Where the keys come from: ``file:/path``, ``env:NAME`` or ``module:function``; None: nothing is sealed. The first
    key seals, all of them open."""
    read_unsealed: bool = False
    """Whether what is not sealed is read as well: while a store changes over to sealing, or if jobs are enqueued by
    SQL."""
    reseal: Interval | None = "10m"
    """While there are several keys: how often workers look for what was sealed with an old one, and seal it again;
    None: never."""


class Compress(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which sections are compressed, where ``compress_over`` allows it."""

    parameters: bool = True
    vm_state: bool = True
    metadata: bool = True
    blob: bool = True
    result: bool = True

    @property
    def left_out(self) -> frozenset[str]:
        """Those that are not."""
        return frozenset(name for name in self.__struct_fields__ if not getattr(self, name))


class PayloadSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sizes, compression and encryption of payloads and results."""

    max_size: Positive = 16 * 1024 * 1024
    compress_over: Count | None = 1_024
    """Cells longer than this are compressed if that makes them smaller; None: never."""
    compress: Compress = Compress()
    sealing: SealingSettings = SealingSettings()


class Offload(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a section leaves for the object store."""

    over: Count | None = 65_536
    """If it is longer than this; None: its length is no reason."""
    delay: AnyLength | None = "10s"
    """If its job is due later than this, at its enqueue or after a run; None: that is no reason."""
    dead_letters: bool = True
    """If its job fails or expires."""
    least: Count = 256
    """What is no longer than this stays. What takes its place has 25 bytes."""


class ObjectSettings(_Discreet, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sections in an object store."""

    url: str | None = None
    """``s3://bucket/prefix``, ``gs://…``, ``az://…`` or ``file:///directory``; None: all sections stay in the store.
    Credentials come from the environment, or as options of the URL."""
    parameters: Offload = Offload()
    vm_state: Offload = Offload()
    metadata: Offload = Offload()
    blob: Offload = Offload()
    keep: Interval = "26h"
    """How long the objects of an hour stay after it. Longer than completed jobs are kept, else those are copied; but
    not by much, as what is left of ended jobs takes up room until then."""
    grace: Interval = "1h"
    """No object goes that was written, or copied, more recently. Longer than any handler runs."""
    every: Interval = "10m"
    """How often a worker looks for objects that are past that."""

    def _without_secrets(self) -> dict[str, Any]:
        return {"url": self.url and self.url.partition("?")[0]}


class Keep(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much is kept in one place. What exceeds one of the three bounds is removed: the oldest first; of dead letters
    those of the tenants that have the most. None: no such bound."""

    age: AnyLength | None = "1d"
    count: Count | None = 100_000
    bytes: Count | None = 256 * 1024 * 1024


class SafetySettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When retention asks before it deletes what is too old: on its first run, after its rules have changed, and when
    the store's clock may be wrong. Bounds of count and bytes always hold."""

    share: float = 0.05
    """At most this part of the jobs of a state goes then …"""
    floor: Count = 10_000
    """… or this many."""
    gap: Annotated[Length, AtLeast(60_000_000)] = "3d"
    """A clock that is further ahead of the last run may be wrong: then nothing goes."""


class PlannerSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a worker plans schedules."""

    every: Interval = "10s"
    """At least how often it looks for schedules to plan."""
    ahead: Interval = "60s"
    """How long before its instant a slot is planned; at most 7 days."""
    batch: Positive = 100
    """Schedules in one trip."""
    share: Count = 0
    shares: Positive = 1
    """Split all schedules into ``shares``, and plan only share number ``share``: for 100,000 schedules and more. Run a
    worker for every share; other workers plan a share without one, but late."""


class RetentionSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is kept of jobs that have ended."""

    every: Interval = "60s"
    completed: Keep = Keep()
    cancelled: Keep = Keep(bytes=64 * 1024 * 1024)
    failed: Keep = Keep(age="7d", bytes=512 * 1024 * 1024)
    ticks: Keep = Keep(age="7d", count=1_000_000)
    """Ticks: what became of the slots of schedules."""
    keys: Count = 10_000_000
    """How many keys may outlive the records of their jobs. A key stays taken for ``result_ttl``, whatever else is
    removed. If there are more, those that would be free first are freed early, and an alert says so."""
    removals: Count = 100_000
    """How many counts of removed jobs are kept: one for each hour, state, task and tenant. Those of the oldest hours go
    first."""
    safety: SafetySettings = SafetySettings()


class VaultSettings(_Discreet, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The archive of ended jobs."""

    url: str | None = None
    """``s3://bucket/prefix``, ``gs://…``, ``az://…`` or ``file:///directory``; None: what is removed is gone."""
    every: Interval = "60s"
    """How often a worker archives what has ended."""
    page: Positive = 10_000
    """How many jobs one file has at most, before files are put together."""

    def _without_secrets(self) -> dict[str, Any]:
        return {"url": self.url and self.url.partition("?")[0]}


class HttpSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The HTTP server for health, metrics, the admin API and the dashboard."""

    address: str | None = None
    """Where it listens: ``host:port``, a port of this machine, or ``unix:/path``; None: nowhere."""
    tokens: str | None = None
    """Where the tokens are: ``file:/path`` or ``env:NAME``, lines of role, name and token. Without them, only this
    machine can reach the server."""
    writes: bool = False
    """Whether operators may change things."""
    redaction: str = "secrets"
    """What is shown of payloads: ``nothing`` is hidden, ``secrets`` are, or ``all`` is."""
    hosts: tuple[str, ...] = ()
    """Names under which a server without tokens may be asked, besides those of this machine."""


class AlertSettings(_Discreet, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When ``headrace serve`` raises alerts, and whom it tells."""

    every: Interval = "15s"
    """How often it looks."""
    oldest: Interval = "10m"
    """A due job that has waited longer is worth a warning …"""
    oldest_critical: Interval = "1h"
    """… or is critical."""
    unattended: Interval = "1m"
    """How long due jobs may wait while no worker claims from their queue, or no slot is busy."""
    running: Positive = 1_000
    """More jobs of one queue that run at once are worth a warning: taken, and not settled."""
    window: Interval = "10m"
    """What counts as lately for the three below."""
    dead_letters: Positive = 100
    """So many more dead letters lately."""
    failure_ratio: float = 0.5
    """More than this share of attempts failed lately …"""
    attempts: Positive = 20
    """… of at least this many."""
    store_bytes: Positive | None = None
    """The budget of the store; above 80 % is worth a warning. None: it has none."""
    vault_lag: Interval = "1h"
    """An ended job that has waited longer for the vault is worth a warning."""
    webhook: str | None = None
    """A URL that every change of an alert is posted to, as JSON."""

    def _without_secrets(self) -> dict[str, Any]:
        return {"webhook": self.webhook and "***"}


class Settings(_Discreet, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that can be set.

    >>> Settings.load(env={"HEADRACE_WORKER__CONCURRENCY": "4"}, toml={}).worker.concurrency
    4
    """

    url: str = "sqlite:///headrace.db"
    replica_url: str | None = None
    """A replica of the store, which the admin API reads lists and statistics from."""
    result_ttl: AnyLength = "1h"
    """How long results can be fetched and completed keys stay taken, unless the task or the job says otherwise."""
    patience: AnyLength = "30s"
    """How long an enqueue is repeated while the store is away, and a client waits for a store that hangs."""
    worker: WorkerSettings = WorkerSettings()
    payloads: PayloadSettings = PayloadSettings()
    objects: ObjectSettings = ObjectSettings()
    retention: RetentionSettings = RetentionSettings()
    vault: VaultSettings = VaultSettings()
    planner: PlannerSettings = PlannerSettings()
    http: HttpSettings = HttpSettings()
    alerts: AlertSettings = AlertSettings()

    def __post_init__(self) -> None:
        _check(self)

    def _without_secrets(self) -> dict[str, Any]:
        replica = self.replica_url and url_without_secrets(self.replica_url)
        return {"url": url_without_secrets(self.url), "replica_url": replica}

    @classmethod
    def load(
        cls,
        overrides: Mapping[str, Any] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        toml: Mapping[str, Any] | None = None,
    ) -> Settings:
        """Settings from all sources: ``overrides`` win over the environment, that over ``headrace.toml`` (or the
        ``[tool.headrace]`` table of ``pyproject.toml``) in the working directory, that over the defaults."""
        layers = [_from_files() if toml is None else dict(toml), from_env(os.environ if env is None else env, cls)]
        given = merged(*layers, dict(overrides or {}))
        _refuse_unknown(given, cls)
        try:
            return msgspec.convert(given, cls, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"settings: {error}") from error


def _refuse_unknown(given: Mapping[str, Any], part: type[Struct], path: tuple[str, ...] = ()) -> None:
    """Refuse the first unknown name, and suggest the setting that may have been meant."""
    hints, parts = get_type_hints(part), parts_of(part)
    for name, value in given.items():
        if name in hints:
            if name in parts and isinstance(value, Mapping):
                _refuse_unknown(value, parts[name], (*path, name))
            continue
        meant: list[tuple[str, ...]] = [
            (parent, name) for parent, kind in parts.items() if name in kind.__struct_fields__
        ]
        meant = meant or [(close,) for close in get_close_matches(str(name), hints, 1)]
        shapes = [repr(one[0]) if len(one) == 1 else f'{one[0]}={{"{name}": {shown(value)}}}' for one in meant]
        hint = f"did you mean {' or '.join(shapes)}?" if shapes else f"there are: {', '.join(hints)}"
        raise ConfigError(f"settings: unknown setting {'.'.join((*path, str(name)))!r}; {hint}")


def _check(settings: Settings) -> None:
    worker, sealing, planner = settings.worker, settings.payloads.sealing, settings.planner
    _check_types(settings)
    try:
        size = len(worker.name.encode())
    except (AttributeError, UnicodeEncodeError):
        size = 0
    if not 0 < size <= 1_024 or "\0" in worker.name:
        raise ConfigError(f"worker.name: expected a name of at most 1,024 bytes, got {shown(worker.name)}")
    if worker.executor not in ("thread", "process"):
        raise ConfigError(f"worker.executor: expected 'thread' or 'process', got {worker.executor!r}")
    if sealing.keys is not None and not (isinstance(sealing.keys, str) and _SOURCE.fullmatch(sealing.keys)):
        raise ConfigError("payloads.sealing.keys: expected file:/path, env:NAME or module:function; never a key itself")
    share = settings.retention.safety.share
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ConfigError(f"retention.safety.share: expected a number from 0 to 1, got {shown(share)}")
    for path, url in (("objects.url", settings.objects.url), ("vault.url", settings.vault.url)):
        if url is not None and not (isinstance(url, str) and "://" in url):
            raise ConfigError(
                f"{path}: expected text like s3://bucket/prefix; it is not shown here, as it may be secret"
            )
    _check_http(settings.http)
    _check_alerts(settings.alerts)
    if micros(planner.ahead) > micros(_AHEAD):
        raise ConfigError(f"planner.ahead: expected at most {_AHEAD}, got {planner.ahead!r}")
    if planner.share >= planner.shares:
        raise ConfigError(f"planner.share: expected a share from 0 to {planner.shares - 1}, got {planner.share}")


def _check_types(part: Struct, path: str = "") -> None:
    """Check switches, and numbers and lengths against the least that each may be."""
    for name, kind, least, optional in _typed(type(part)):
        given, where = getattr(part, name), f"{path}{name}"
        if given is None and optional:
            continue
        if isinstance(given, Struct):
            _check_types(given, f"{where}.")
        elif kind is bool and not isinstance(given, bool):
            raise ConfigError(f"{where}: expected True or False, got {shown(given)}")
        elif kind is int:
            check_whole(given, where, least)
        elif kind == Length and micros(given, where) < least:
            raise ConfigError(f"{where}: expected at least {spell(least)}, got {given!r}")


@cache
def _typed(part: type[Struct]) -> list[tuple[str, Any, int, bool]]:
    """Each setting: its name, its type, the least that it may be, and whether it may be None."""
    found = []
    for name, hint in get_type_hints(part, include_extras=True).items():
        options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        kind = next((one for one in options if get_origin(one) is Annotated), options[0])
        bare, least = (kind.__origin__, kind.__metadata__[0].least) if get_origin(kind) is Annotated else (kind, 0)
        found.append((name, bare, least, NoneType in options))
    return found


def _check_alerts(alerts: AlertSettings) -> None:
    if not (isinstance(alerts.failure_ratio, int | float) and 0 <= alerts.failure_ratio <= 1):
        raise ConfigError(f"alerts.failure_ratio: expected a share from 0 to 1, got {shown(alerts.failure_ratio)}")
    if alerts.webhook is not None and not str(alerts.webhook).startswith(("http://", "https://")):
        raise ConfigError("alerts.webhook: expected a URL like https://…; it is not shown here, as it may be secret")


def _check_http(http: HttpSettings) -> None:
    if http.tokens is not None and not (isinstance(http.tokens, str) and _TOKENS.fullmatch(http.tokens)):
        raise ConfigError("http.tokens: expected file:/path or env:NAME; never a token itself")
    if http.redaction not in ("nothing", "secrets", "all"):
        raise ConfigError(f"http.redaction: expected 'nothing', 'secrets' or 'all', got {shown(http.redaction)}")


def _from_files() -> dict[str, Any]:
    for path, table in ((Path("headrace.toml"), ()), (Path("pyproject.toml"), ("tool", "headrace"))):
        if path.is_file():
            try:
                data = tomllib.loads(path.read_text("utf-8"))
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise ConfigError(f"{path}: expected TOML: {error}") from error
            for part in table:
                data = data.get(part, {})
                if not isinstance(data, dict):
                    raise ConfigError(f"{path}: expected a table [{'.'.join(table)}], got {shown(data)}")
            if data:
                return data
    return {}


_AHEAD = "7d"
"""Half of the time for which a store with one partition per day makes partitions ahead."""
_SOURCE = re.compile(r"file:.+|(env|[A-Za-z_][\w.]*):[A-Za-z_]\w*")
_TOKENS = re.compile(r"file:.+|env:[A-Za-z_]\w*")
_DEEPEST = 8
"""Deeper than any settings are nested."""


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of several sources as one table: the later ones win."""
    found: dict[str, Any] = {}
    for layer in layers:
        _merge(found, layer)
    return found


def _merge(into: dict[str, Any], layer: Mapping[str, Any], depth: int = 0) -> None:
    for name, value in layer.items():
        if isinstance(value, Mapping):
            if depth == _DEEPEST:
                raise ConfigError(f"settings: {shown(name)} is nested too deeply, or a table contains itself")
            place = into.setdefault(name, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{name}: expected a table of settings, got {shown(place)}")
            _merge(place, value, depth + 1)
        elif isinstance(into.get(name), dict) and not isinstance(value, Struct):
            raise ConfigError(f"{name}: expected a table of settings, got {shown(value)}")
        elif isinstance(value, timedelta):
            into[name] = value.total_seconds()
        else:
            into[name] = msgspec.to_builtins(value) if isinstance(value, Struct) else value
