"""The clock that leases are measured by."""

import time

from headrace.core.clock import SystemClock


def test_a_lease_grows_older_while_the_machine_sleeps() -> None:
    """Linux's monotonic clock stands still while the machine is suspended; the one since boot goes on. Other systems
    have one clock for both."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    assert SystemClock.elapsed.args == (clock,)
    before = time.clock_gettime(clock)
    assert before <= SystemClock().elapsed() <= time.clock_gettime(clock)
