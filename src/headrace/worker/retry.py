"""Retry policies: whether there is another attempt, and how long it waits."""

from __future__ import annotations

import math
from random import Random

from msgspec import Struct

from headrace.core.durations import LONGEST, micros
from headrace.errors import ConfigError
from headrace.text import shown
from headrace.types import Duration

_FOREVER = 2**31


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """After failed attempt ``n``, from 1, wait ``base · factor^(n-1)``, at most ``cap``. With jitter, wait a random
    part of that. After ``max_attempts`` attempts the job has failed.

    Exceptions in ``give_up_on`` end the job at once; if ``retry_on`` is set, so do all that are not in it.

    >>> exponential(base="1s", jitter=False).delay(3, Random()) == micros("4s")
    True
    """

    max_attempts: int = 5
    base: int = 1_000_000
    factor: float = 2.0
    cap: int = 3_600_000_000
    jitter: bool = True
    retry_on: tuple[type[Exception], ...] | None = None
    give_up_on: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        checks = (
            ("max_attempts", _whole(self.max_attempts) and self.max_attempts >= 1, "a whole number of at least 1"),
            ("base", _length(self.base), "microseconds, ten years at most"),
            ("cap", _length(self.cap), "microseconds, ten years at most"),
            ("factor", _number(self.factor) and self.factor >= 1, "a number of at least 1"),
            ("retry_on", self.retry_on is None or _kinds(self.retry_on), "a tuple of exception classes"),
            ("give_up_on", _kinds(self.give_up_on), "a tuple of exception classes"),
        )
        for name, good, expected in checks:
            if not good:
                raise ConfigError(f"{name}: expected {expected}, got {shown(getattr(self, name))}")

    def delay(self, attempt: int, rng: Random) -> int:
        """Microseconds to wait after failed attempt number ``attempt``."""
        try:
            wait = min(self.base * float(self.factor) ** (attempt - 1), self.cap) if self.base else 0
        except OverflowError:
            wait = self.cap
        return round(rng.random() * wait if self.jitter else wait)

    def allows(self, error: BaseException) -> bool:
        """Whether another attempt after this error makes sense."""
        if isinstance(error, self.give_up_on):
            return False
        return self.retry_on is None or isinstance(error, self.retry_on)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _length(value: object) -> bool:
    return isinstance(value, int) and _whole(value) and 0 <= value <= LONGEST


def _number(value: object) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _kinds(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(one, type) and issubclass(one, BaseException) for one in value)


def exponential(
    max_attempts: int = 5,
    *,
    base: Duration = "1s",
    factor: float = 2.0,
    cap: Duration = "1h",
    jitter: bool = True,
    retry_on: tuple[type[Exception], ...] | None = None,
    give_up_on: tuple[type[Exception], ...] = (),
) -> RetryPolicy:
    """Wait longer after each failure. With ``base="1s"`` and the default cap: 1, 2, 4 … 3,600 seconds.

    >>> from random import Random
    >>> from headrace import App, exponential
    >>> app = App("memory://")
    >>> policy = exponential(8, base="2s", cap="10s", jitter=False, give_up_on=(ValueError,))
    >>> @app.task(retry=policy)
    ... def publish(post: int) -> None: ...
    >>> [policy.delay(n, Random()) // 1_000_000 for n in (1, 2, 3, 4)]
    [2, 4, 8, 10]
    """
    return RetryPolicy(
        max_attempts=max_attempts,
        base=micros(base, "base"),
        factor=factor,
        cap=micros(cap, "cap"),
        jitter=jitter,
        retry_on=retry_on,
        give_up_on=give_up_on,
    )


def persistent(max_attempts: int = 20, *, jitter: bool = True) -> RetryPolicy:
    """2, 4, 8 … at most 3,600 seconds.

    >>> from random import Random
    >>> from headrace import App, persistent
    >>> app = App("memory://")
    >>> policy = persistent(jitter=False)
    >>> @app.task(retry=policy)
    ... def publish(post: int) -> None: ...
    >>> [policy.delay(n, Random()) // 1_000_000 for n in (1, 2, 3, 19)]
    [2, 4, 8, 3600]
    """
    return exponential(max_attempts, base="2s", cap="1h", jitter=jitter)


def gentle(max_attempts: int = 5, *, jitter: bool = True) -> RetryPolicy:
    """30, 60, 120 … at most 600 seconds: for services that need a while to recover.

    >>> from random import Random
    >>> from headrace import App, gentle
    >>> app = App("memory://")
    >>> policy = gentle(8, jitter=False)
    >>> @app.task(retry=policy)
    ... def publish(post: int) -> None: ...
    >>> [policy.delay(n, Random()) // 1_000_000 for n in (1, 2, 3, 7)]
    [30, 60, 120, 600]
    """
    return exponential(max_attempts, base="30s", cap="10m", jitter=jitter)


def immediate(max_attempts: int = 3) -> RetryPolicy:
    """Try again at once, behind the jobs that are due already.

    >>> from random import Random
    >>> from headrace import App, immediate
    >>> app = App("memory://")
    >>> @app.task(retry=immediate(2))
    ... def publish(post: int) -> None: ...
    >>> immediate(2).max_attempts, immediate(2).delay(1, Random())
    (2, 0)
    """
    return exponential(max_attempts, base=0, jitter=False)


def never() -> RetryPolicy:
    """One attempt.

    >>> from headrace import App, never
    >>> app = App("memory://")
    >>> @app.task(retry=never())
    ... def publish(post: int) -> None: ...
    >>> never().max_attempts
    1
    """
    return exponential(1)


def forever(*, base: Duration = "1s", cap: Duration = "1h") -> RetryPolicy:
    """Never give up.

    >>> from random import Random
    >>> from headrace import App, forever
    >>> app = App("memory://")
    >>> @app.task(retry=forever(cap="10m"))
    ... def publish(post: int) -> None: ...
    >>> forever(cap="10m").delay(1_000_000, Random()) <= 600_000_000
    True
    """
    return exponential(_FOREVER, base=base, cap=cap)
