"""Targets are bounds on figures and on ratios; a missed one is said to be missed."""

from benchmarks.metrics import METRICS
from benchmarks.results import Result, Run, table
from benchmarks.systems import SYSTEMS
from benchmarks.targets import TARGETS, Target, report, verdicts


def run(**figures: float) -> Run:
    made = Run({}, {"ours": {}, "peer": {}})
    for name, value in figures.items():
        system, metric = name.split("_", 1)
        made.results.append(Result("sqlite", system, metric, "jobs/s", "", "", [value], True))
    return made


def test_a_ratio_is_held_against_the_better_of_the_others() -> None:
    target = Target("drain", "ours", "drain", 5, against=(("peer", "drain"), ("peer", "shallow")))
    assert target.judge(run(ours_drain=50, peer_drain=1, peer_shallow=10)).word == "reached"
    assert target.judge(run(ours_drain=49, peer_drain=1, peer_shallow=10)).word == "MISSED"


def test_an_upper_bound_is_missed_from_above() -> None:
    target = Target("latency", "ours", "p50", 3, at_least=False)
    assert target.judge(run(ours_p50=3)).word == "reached"
    assert target.judge(run(ours_p50=3.1)).word == "MISSED"


def test_what_was_not_measured_is_neither_reached_nor_missed() -> None:
    target = Target("drain", "ours", "drain", 5, against=(("peer", "drain"),))
    assert target.judge(run(ours_drain=50)).word == "not measured"
    assert target.judge(run(peer_drain=50)).word == "not measured"


def test_the_report_names_missed_targets_with_their_figures() -> None:
    target = Target("drain against peer", "ours", "drain", 5, against=(("peer", "drain"),))
    [line] = report(verdicts(run(ours_drain=20, peer_drain=10), [target])).splitlines()
    assert line.startswith("MISSED")
    assert "2.00" in line
    assert "20.0 : 10.0 jobs/s" in line


def test_every_target_speaks_of_systems_and_figures_that_exist() -> None:
    figures = {figure.name for metric in METRICS.values() for figure in metric.figures}
    for target in TARGETS:
        for system, metric in ((target.system, target.metric), *target.against):
            assert system in SYSTEMS
            assert metric in figures


def test_a_ratio_waits_for_all_others_as_the_missing_one_may_be_the_best() -> None:
    target = Target("drain", "ours", "drain", 5, against=(("peer", "drain"), ("peer", "shallow")))
    assert target.judge(run(ours_drain=50, peer_drain=1)).word == "not measured"


def test_a_ratio_to_nothing_is_no_triumph() -> None:
    target = Target("drain", "ours", "drain", 5, against=(("peer", "drain"),))
    assert target.judge(run(ours_drain=50, peer_drain=0)).word == "not measured"


def test_what_was_measured_in_memory_says_nothing_about_a_disk() -> None:
    made = run(ours_drain=50)
    made.machine = {"filesystem": "tmpfs"}
    [line] = report(verdicts(made, [Target("drain", "ours", "drain", 5)])).splitlines()
    assert line.startswith("void")
    assert "VOID" in table(made)
    made.machine = {"filesystem": "ext4"}
    assert "VOID" not in table(made)


def test_bulk_enqueue_is_judged_by_what_a_user_pays() -> None:
    [judged] = {target.metric for target in TARGETS if target.what.startswith("bulk")}
    assert judged == "bulk_whole"


def test_a_machine_with_too_few_cores_cannot_miss_a_target_that_needs_them() -> None:
    target, made = Target("two workers", "ours", "pair", 1.6, cores=3), run(ours_pair=1.0)
    made.machine = {"cores": 2}
    verdict = target.judge(made)
    assert verdict.word == "not measured"
    assert verdict.figures == "expected 3 cores, got 2"
    made.machine = {"cores": 4}
    assert target.judge(made).word == "MISSED"
