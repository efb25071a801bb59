"""Which shard a new job goes to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote
from zlib import crc32

from msgspec import Struct

from headrace.core.durations import micros
from headrace.core.names import check_name
from headrace.errors import ConfigError, HeadraceError
from headrace.seam.records import Row
from headrace.text import shown

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_NAMED = ("queue", "tenant", "task", "later")
_COPIES = ("shadow", "dual")
_ALONE = ("*", "full", *_COPIES)
_EXAMPLE = "such as mail=bulk, tenant/acme:0.1=bulk, later/1h=bulk, *=main"


class Route(Struct, frozen=True):
    """One rule: jobs that match go to a shard, or a share of them."""

    kind: str
    """``*``, or one of queue, tenant, task, later (due later than that), full (refused by the shard of the others),
    shadow, dual (copies)."""
    name: str
    shard: str
    share: float = 1.0
    later: int = 0
    """In microseconds."""

    def __str__(self) -> str:
        name = quote(self.name, safe=" ")
        match = name if self.kind == "queue" else "/".join(filter(None, (self.kind, name)))
        return f"{match}{'' if self.share == 1 else f':{self.share:g}'}={self.shard}"


class Routes(Struct, frozen=True):
    """The rules, in order: the first that matches decides."""

    rules: tuple[Route, ...]
    home: str
    """Where all others go."""
    spill: str | None = None
    """Where those go that their shard refuses because it is full."""
    copies: tuple[Route, ...] = ()
    """Where copies go that are never due: behind the producers' backs (shadow), or while they wait (dual)."""

    def shard_of(self, row: Row) -> str:
        """Always the same for the same job, and for jobs of one queue with the same key or group."""
        for rule in self.rules:
            if _matches(rule, row) and (rule.share == 1 or _point(row) < rule.share):
                return rule.shard
        return self.home

    def spills(self, row: Row) -> bool:
        """Whether the job may go elsewhere if its shard is full. Keys and groups stay together."""
        return self.spill is not None and row.key is None and row.group is None and self.shard_of(row) != self.spill


def parse_routes(text: str, shards: Iterable[str]) -> Routes:
    """Read rules, and refuse what is wrong with them.

    >>> routes = parse_routes("mail:0.5=bulk, tenant/acme=bulk, later/1h=bulk, full=bulk, *=main", ["main", "bulk"])
    >>> routes.home, routes.spill, [str(rule) for rule in routes.rules]
    ('main', 'bulk', ['mail:0.5=bulk', 'tenant/acme=bulk', 'later/1h=bulk'])
    """
    known, found = list(shards), {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        rule = _parse(part, known)
        if (rule.kind, rule.name) in found:
            raise ConfigError(f"routes: expected one rule for {part.partition('=')[0].strip()}, got two")
        found[rule.kind, rule.name] = rule
    home, spill = found.pop(("*", ""), None), found.pop(("full", ""), None)
    if home is None:
        raise ConfigError(f"routes: expected a rule for all other jobs, *=SHARD, got none in {shown(text)}; {_EXAMPLE}")
    if spill is not None and spill.shard == home.shard:
        raise ConfigError(f"routes: full={spill.shard}: expected another shard than that of *, where jobs come from")
    copies = tuple(rule for rule in found.values() if rule.kind in _COPIES)
    rules = tuple(rule for rule in found.values() if rule.kind not in _COPIES)
    return Routes(rules, home.shard, None if spill is None else spill.shard, copies)


def _parse(part: str, known: list[str]) -> Route:
    match, equals, shard = (piece.strip() for piece in part.rpartition("="))
    if not equals or not match or not shard:
        raise ConfigError(f"routes: expected MATCH=SHARD, got {shown(part)}; {_EXAMPLE}")
    if shard not in known:
        raise ConfigError(f"routes: {shown(part)}: expected one of the shards {', '.join(known)}, got {shown(shard)}")
    match, colon, number = match.partition(":")
    share = _share(part, number) if colon else 1.0
    kind, slash, name = match.partition("/")
    if not slash:
        kind, name = (match, "") if match in _ALONE else ("queue", match)
    name = unquote(name)
    if (kind not in _NAMED and (kind not in _ALONE or name)) or (kind in ("*", "full") and share != 1):
        raise ConfigError(
            f"routes: {shown(part)}: expected a queue, tenant/NAME, task/NAME, later/DURATION, full, shadow, dual or *,"
            f" got {shown(match)}"
        )
    try:
        later = micros(name, "later") if kind == "later" else 0
        if kind in ("queue", "task", "tenant"):
            check_name(name, kind)
    except HeadraceError as error:
        raise ConfigError(f"routes: {shown(part)}: {error}") from error
    return Route(kind, name, shard, share, later)


def _share(part: str, number: str) -> float:
    try:
        share = float(number)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ConfigError(f"routes: {shown(part)}: expected a share above 0 and up to 1, got {shown(number)}")
    return share


def check_shards(shards: Mapping[str, object]) -> None:
    """Refuse names that cannot be used in rules."""
    if not shards:
        raise ConfigError("shards: expected at least one, NAME = URL, got none")
    for name in shards:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"shards: expected a name of small letters, digits, - and _, got {shown(name)}")


def _matches(rule: Route, row: Row) -> bool:
    match rule.kind:
        case "queue":
            return row.queue == rule.name
        case "tenant":
            return row.tenant == rule.name
        case "task":
            return row.task == rule.name
        case _:
            return row.key is None and row.group is None and _delay(row) > rule.later


def _delay(row: Row) -> int:
    """How long the job waits, as its id tells when it was made: so the answer is the same when an insert is
    repeated."""
    if row.run_at is None:
        return row.delay
    made = int.from_bytes(row.id[:6]) * 1_000 if row.id[6] >> 4 == 7 else 0
    return row.run_at - made


def _point(row: Row) -> float:
    """Where among all jobs this one lies, from 0 to 1."""
    name = f"{row.queue}\0k{row.key}" if row.key is not None else f"{row.queue}\0g{row.group}" if row.group else None
    return crc32(row.id if name is None else name.encode()) / 2**32
