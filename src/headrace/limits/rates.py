"""Rates and limits as people write them, checked before a store sees them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any

from headrace.core.durations import micros, spell_exactly
from headrace.core.names import check_name, refuse_unknown
from headrace.errors import ConfigError
from headrace.seam.policy import Policy, Rate
from headrace.text import shown
from headrace.types import Duration

_RATE = re.compile(r"([0-9]{1,9})/((?:[0-9.]*[a-z]+)+?)(?:,burst([0-9]{1,9}))?")
_UNITS = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_DAY = 86_400_000_000
_LONGEST_BURST = 30 * _DAY
"""The longest time in which a burst may build up."""
_MOST_BURST = 999_999_999
_MOST = 2**31 - 1
_EXPECTED = "expected a rate like '100/s', '5/10m' or '100/s, burst 20'"
RULES = tuple(name for name in Policy.__struct_fields__ if name not in ("queue", "version"))
"""What a policy can say."""


def parse_rate(given: object, what: str) -> Rate:
    """The rate of ``"100/s"``, ``"5/10m"`` or ``"100/s, burst 20"``; by default, the burst is the number itself.

    >>> parse_rate("100/s", "rate")
    Rate(every=10000, burst=100)
    """
    if isinstance(given, Rate):
        return _checked(given, given, what)
    text = given.replace(" ", "") if isinstance(given, str) and len(given) <= 64 else ""
    match = _RATE.fullmatch(text)
    if match is None or not int(match[1]):
        raise ConfigError(f"{what}: {_EXPECTED}, got {shown(given)}")
    jobs = int(match[1])
    try:
        length = micros(match[2] if match[2][0].isdigit() else f"1{match[2]}", what)
    except ConfigError:
        raise ConfigError(f"{what}: {_EXPECTED}, got {shown(given)}") from None
    if jobs > length:
        raise ConfigError(f"{what}: expected at most a million jobs a second, got {shown(given)}")
    return _checked(Rate(-(-length // jobs), int(match[3] or jobs)), given, what)


def _checked(rate: Rate, given: object, what: str) -> Rate:
    if not (isinstance(rate.every, int) and isinstance(rate.burst, int) and rate.every >= 1 and rate.burst >= 1):
        raise ConfigError(f"{what}: expected at least 1us per job and a burst of at least 1, got {shown(given)}")
    if rate.burst > _MOST_BURST:
        raise ConfigError(f"{what}: expected a burst of at most {_MOST_BURST:,}, got {shown(given)}")
    if rate.every > _DAY or rate.every * rate.burst > _LONGEST_BURST:
        raise ConfigError(
            f"{what}: expected at least one job a day, and a burst of at most 30 days' worth, got {shown(given)}"
        )
    return rate


def spell_rate(rate: Rate) -> str:
    """The rate as it may be written.

    >>> spell_rate(Rate(10_000, 100)), spell_rate(Rate(10_000, 20)), spell_rate(Rate(120_000_000, 5))
    ('100/s', '100/s, burst 20', '5/10m')
    >>> spell_rate(parse_rate("15000/s", "rate")), spell_rate(parse_rate("15000/s, burst 7", "rate"))
    ('15000/s', '15000/s, burst 7')
    """
    fitting = {unit: jobs for unit, length in _UNITS.items() if (jobs := _jobs(rate.every, length))}
    if (unit := next((unit for unit, jobs in fitting.items() if rate.burst in jobs), None)) is not None:
        return f"{rate.burst}/{unit}"
    if not rate.every * rate.burst % _UNITS["s"]:
        return f"{rate.burst}/{spell_exactly(rate.every * rate.burst)}"
    if fitting:
        unit, jobs = next(iter(fitting.items()))
        return f"{_roundest(jobs)}/{unit}, burst {rate.burst}"
    return f"1/{rate.every}us" + (f", burst {rate.burst}" if rate.burst > 1 else "")


def _jobs(every: int, length: int) -> range:
    """All numbers of jobs per ``length`` that amount to one job per ``every``."""
    least = -(-length // every)
    most = length if every == 1 else (length - 1) // (every - 1)
    return range(least, min(most, length, _MOST_BURST) + 1)


def _roundest(numbers: range) -> int:
    """The one that ends in the most zeros."""
    for zeros in range(9, 0, -1):
        step = int(10**zeros)
        if (rounded := -(-numbers.start // step) * step) in numbers:
            return rounded
    return numbers.start


def check_rules(rules: Mapping[str, Any]) -> dict[str, Any]:
    """Rules as a policy keeps them. Raises ``ConfigError``."""
    refuse_unknown(rules.keys(), RULES, "rule")
    return {
        name: copy(_WITHOUT.get(name)) if value is None else _CHECKS[name](value, name) for name, value in rules.items()
    }


def check_count(given: object, what: str, least: int = 1) -> int:
    """A number of jobs."""
    if not isinstance(given, int) or isinstance(given, bool) or not least <= given <= _MOST:
        bound = f"at most {_MOST:,}" if isinstance(given, int) and given > _MOST else f"at least {least}"
        raise ConfigError(f"{what}: expected a whole number of {bound}, got {shown(given)}")
    return given


def check_lasts(given: Duration | None) -> int | None:
    """How long a pause lasts; None: until it is ended."""
    if given is None:
        return None
    if not (length := micros(given, "lasts")):
        raise ConfigError(f"lasts: expected more than 0s, got {shown(given)}; to end a pause, resume what is paused")
    return length


MOST_TASKS = 1_000
"""Tasks of a queue that have a rate, and that are paused; each."""


def _rates(given: object, what: str) -> dict[str, Rate]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{what}: expected a mapping of tasks to rates, got {shown(given)}")
    if len(given) > MOST_TASKS:
        raise ConfigError(
            f"{what}: expected rates of at most {MOST_TASKS:,} tasks, as every claim looks at all of them,"
            f" got {len(given):,}"
        )
    return {check_name(task, f"{what}: task"): parse_rate(rate, f"{what}: {task}") for task, rate in given.items()}


def _ageing(given: Any, what: str) -> int:
    length = micros(given, what)
    if not 1_000 <= length <= _DAY:
        raise ConfigError(f"{what}: expected between 1ms and 1d, got {shown(given)}")
    return length


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "running": check_count,
    "rate": parse_rate,
    "tenant_running": check_count,
    "tenant_rate": parse_rate,
    "task_rates": _rates,
    "tenant_workers": check_count,
    "tenant_batch": check_count,
    "ageing": _ageing,
    "group_running": check_count,
    "depth": partial(check_count, least=0),
}
_WITHOUT = {"task_rates": {}, "group_running": 1}
"""What a policy says without these rules; of the others, it then says nothing."""
