"""What the dashboard's lines are made of."""

from __future__ import annotations

from headrace.admin.history import OTHER, STEP, History, quantile
from headrace.admin.views import Overview, QueueView
from headrace.core.feed import Digest, Tally, Timing
from headrace.core.histogram import BOUNDS

SIZE = len(BOUNDS) + 1


def counts(**at: int) -> list[int]:
    return [at.get(f"b{place}", 0) for place in range(SIZE)]


def test_counts_are_rates_of_whole_steps() -> None:
    history = History()
    for now, count in ((0.0, 10), (4.9, 10), (5.0, 5), (12.0, 99)):
        history.hear(Digest("web-1", 0, [Tally("mail", "send", "completed", count)]), now)
    assert history.per_second("completed", 12.0, points=3) == [0.0, 20 / STEP, 5 / STEP]
    assert history.per_second("completed", 12.0, "other queue", points=2) == [0.0, 0.0]
    assert history.per_second("dead", 12.0, "mail", points=1) == [0.0]


def test_quantiles_of_waits_and_runs() -> None:
    history = History()
    timing = Timing("mail", counts(b4=90, b7=10), counts(b0=100))
    history.hear(Digest("web-1", 0, timings=[timing, Timing("sms", counts(b9=100), counts(b1=100))]), 1.0)
    [p50], [p95] = (history.quantiles("ran", share, STEP, "mail", points=1) for share in (0.5, 0.95))
    assert p50 is not None
    assert p95 is not None
    assert BOUNDS[3] < p50 < BOUNDS[4]
    assert BOUNDS[6] < p95 < BOUNDS[7]
    assert history.quantile("waited", 0.5, STEP, "mail") == BOUNDS[0] / 2
    assert history.quantile("ran", 0.99, STEP, "nobody") is None
    assert quantile(counts(b16=1), 0.99) is not None, "above the last bound too"


def test_what_another_version_tells_is_left_out() -> None:
    history = History()
    history.hear(Digest("web-1", 0, timings=[Timing("mail", [1, 2], [3])]), 1.0)
    assert history.quantile("ran", 0.5, STEP) is None


def test_many_queues_are_added_up() -> None:
    history = History()
    queues = [QueueView(f"q{number}", available=3, scheduled=1, due=2) for number in range(300)]
    history.see(Overview("memory://", None, queues), 1.0)
    history.see(Overview("memory://", None, queues), 2.0)
    assert history.depths(STEP, points=1) == [600.0]
    assert history.depths(STEP, "q7", points=1) == [2.0]
    assert history.depths(STEP, OTHER, points=1) == [200.0]


def test_short_gaps_keep_the_depth_and_long_ones_do_not() -> None:
    history = History()
    history.see(Overview("memory://", None, [QueueView("mail", available=4, due=4)]), 1.0)
    assert history.depths(10 * STEP, points=10) == [4.0] * 7 + [None] * 3


def test_the_lag_of_a_loop_is_forgotten() -> None:
    history = History()
    history.hear(Digest("web-1", 0, worker="one", lag=0.25), 1.0)
    history.hear(Digest("web-1", 0, worker="one", lag=0.01), 2.0)
    assert history.lag("one", 3.0) == 0.25, "the worst of the last seconds"
    assert history.lag("one", 30.0) is None
    assert history.lag("two", 3.0) is None
