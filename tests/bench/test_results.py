"""Results survive being written down, and the table hides nothing."""

from pathlib import Path

from benchmarks.results import Failure, Result, Run, shown, table


def result(system: str = "ours", metric: str = "drain", values: tuple[float, ...] = (3.0, 1.0, 2.0)) -> Result:
    each = [0.5] * len(values)
    return Result("sqlite", system, metric, "jobs/s", "WAL, FULL", "10 jobs", list(values), True, each, each)


def test_a_run_reads_as_it_was_written(tmp_path: Path) -> None:
    run = Run({"cores": 2}, {"ours": {"headrace": "1"}}, [result()], [Failure("peer", "drain", "not installed")])
    run.write(tmp_path / "some" / "run.jsonl")
    again = Run.read(tmp_path / "some" / "run.jsonl")
    assert (again.machine, again.versions, again.results, again.failures) == (
        run.machine,
        run.versions,
        run.results,
        run.failures,
    )


def test_the_median_stands_for_the_values() -> None:
    assert result().median == 2.0
    assert result().spread == 1.0


def test_the_table_names_every_figure_setting_and_failure() -> None:
    run = Run({"cores": 2}, {"ours": {"headrace": "1"}}, [result()], [Failure("peer", "drain", "not installed")])
    text = table(run)
    for part in (
        "cores 2",
        "headrace 1",
        "WAL, FULL",
        "10 jobs",
        "2.00",
        "100%",
        "FAILED drain of peer: not installed",
    ):
        assert part in text


def test_numbers_are_shown_at_the_precision_they_deserve() -> None:
    assert [shown(value) for value in (12_345.6, 45.67, 2.345, 0.01234)] == ["12,346", "45.7", "2.35", "0.0123"]


def test_figures_that_were_taken_once_share_a_table() -> None:
    results = [result(system, metric, (1.0,)) for metric in ("drain", "drain_cpu") for system in ("ours", "theirs")]
    shown_table = table(Run({}, {}, results)).splitlines()
    start = shown_table.index("sqlite: 10 jobs")
    assert shown_table[start + 1].split() == ["ours", "theirs"]
    assert shown_table[start + 2].split() == ["drain,", "jobs/s", "1.00", "1.00"]
    assert shown_table[start + 3].split() == ["drain_cpu,", "jobs/s", "1.00", "1.00"]


def test_stores_are_told_apart() -> None:
    ours, other = result(), Result("postgres", "ours-too", "drain", "jobs/s", "", "10 jobs", [1.0, 2.0], True)
    text = table(Run({}, {}, [ours, other]))
    assert "sqlite: 10 jobs" in text
    assert "postgres: 10 jobs" in text
