"""What all tests share: the sample of ``make test``, loggers as they were found, nothing left in the background,
and a table at the end that says which store offers what."""

from __future__ import annotations

import gc
import importlib
import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from headrace.api import background
from headrace.testing.conformance import BackendConformance
from headrace.testing.conformance.base import CAPABILITIES
from tests.ending import over

SHARED_MEMORY = Path("/dev/shm")
SAMPLED = {
    "test_postgres_pairs.py": 12,
    "test_postgres_pooler.py": 6,
    "test_streams.py": 12,
    "test_crashpoints_streams.py::test_a_crash_loses_and_doubles_nothing": 25,
    "test_crashpoints_streams.py::test_a_kill_loses_and_doubles_nothing": 12,
    "test_redis_six.py": 6,
    "test_redis_cluster.py": 4,
    "test_blocking.py": 4,
    "test_alone.py": 6,
    "test_network.py": 2,
    "test_redis_flat.py": 2,
    "test_postgres_plans.py": 4,
    "test_drivers.py": 3,
    "test_calendar.py": 3,
    "test_sqlite_turns.py": 6,
    "test_crashpoints_redis.py": 6,
    "test_crashpoints_sqlite.py": 4,
    "test_crashpoints_postgres.py": 6,
    "test_machine_sqlite.py": 6,
    "test_machine.py::test_memory_equals_itself_and_keeps_the_laws": 3,
    "test_postgres.py::test_the_state_machine": 6,
    "test_redis.py::test_the_state_machine": 3,
    "test_redis_cluster.py::test_the_state_machine": 6,
    "test_redis_audit.py::test_the_indexes_are_true_to_the_jobs_whatever_is_done": 2,
    "test_seeds.py::test_every_invariant_holds": 6,
    "test_seeds.py::test_every_invariant_holds_of_schedules": 6,
    "test_seeds.py::test_every_invariant_holds_of_rules": 6,
    "test_leases.py::test_a_handler_ten_times_longer_than_its_lease_keeps_it": 6,
    "test_postgres_migrations.py::test_a_schema_may_have_any_name": 3,
    "test_postgres_migrations.py::test_the_printed_sql_takes_any_name": 3,
    "test_postgres_roles.py::test_a_part_gives_exactly_its_operations": 6,
    "test_app_outcomes.py::test_an_undecodable_payload_fails_its_job_and_no_other": 3,
    "test_bad_input.py": 4,
    "test_ticks.py::test_a_million_slots_are_one_job_each_whoever_dies_meanwhile": 4,
    "test_memory_growth.py::test_completed_jobs_leave_nothing_behind": 3,
    "test_round_trip.py::test_the_largest_section": 5,
    "test_executors_processes.py::test_any_error_comes_back_from_a_child_that_lives_on": 3,
    "test_uvloop.py::test_no_timeout_costs_a_slot": 2,
    "test_crash_after_claim.py": 2,
    "test_hang_store.py": 3,
    "test_kill_holders.py": 3,
    "test_kill_planners.py": 3,
    "test_kill_server.py": 3,
    "test_freeze_workers.py": 3,
    "test_moving.py::test_nothing_is_lost_or_doubled_while_work_goes_on": 6,
    "test_poison.py::test_jobs_that_kill_their_worker_are_set_aside_and_no_other": 3,
    "test_object_keeper.py::test_thirty_days_with_some_jobs_that_live_for_weeks": 2,
    "test_objects.py::test_a_server_that_is_away": 2,
    "test_operations_outage.py": 2,
    "test_pipeline.py::test_an_outcome_that_is_refused_for_ever_holds_up_no_other": 3,
    "test_prefork.py::test_servers": 3,
    "test_shards_away.py::test_workers_and_waiters_go_on": 4,
    "test_cyclotron.py::test_the_documented_flow": 3,
    "test_worker.py::test_a_flood_of_failures_keeps_to_the_bound_of_dead_letters": 2,
    "bench": 3,
}
"""In a run of everything, one of so many variants of these tests, and other ones for each commit. Every test runs in at
least one variant; the conformance suite counts as one test, and so does a folder. ``make test-all`` takes all variants,
and so does a run of files that you name. CONTRIBUTING.md says what is left out."""
ON_STORES = 4
"""In a run of everything, a test of what lies above the stores runs on one in so many of its stores. The stores
themselves are in ``tests/backends``, where the conformance suite runs whole."""
PATIENCE = 600
"""Seconds. A test that asks for a longer time limit is long: it starts early, so that no process waits for it in the
end."""


def pytest_sessionfinish() -> None:
    """Close what is shared. Not at exit: who waits for the results kills a process that takes long to exit, and its
    servers would stay."""
    over.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="every combination, not a sample")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Tens of thousands of tests are made and stay: the collector of garbage looks at none of them, now or later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the sample of this run's seed, which is the commit's (Makefile); ``--randomly-seed`` has it again."""
    if config.getoption("--all") or not _of_everything(config):
        return
    seed = config.getoption("randomly_seed", 0)
    tests: dict[tuple[str, str], list[pytest.Item]] = {}
    above: dict[str, list[pytest.Item]] = {}
    for item in items:
        if test := _sampled(item):
            tests.setdefault(test, []).append(item)
        elif above_stores := _above_stores(item):
            above.setdefault(above_stores, []).append(item)
    if unknown := {name for name in SAMPLED if "::" in name} - {name for name, _ in tests}:
        raise pytest.UsageError(f"SAMPLED in tests/conftest.py names tests that do not exist: {', '.join(unknown)}")
    files = Counter(path.name for path in {item.path for item in items})
    if several := [name for name in SAMPLED if files[name] > 1]:
        raise pytest.UsageError(f"SAMPLED in tests/conftest.py names several files at once: {', '.join(several)}")
    gone: set[pytest.Item] = set()
    samples = [(SAMPLED[name], variants) for (name, _), variants in tests.items()]
    samples += [(ON_STORES, variants) for variants in above.values()]
    for one_in, variants in samples:
        drawn = sorted(variants, key=lambda item: crc32(f"{seed} {item.nodeid}".encode()))
        gone.update(drawn[-(-len(drawn) // one_in) :])
    config.hook.pytest_deselected(items=[*gone])
    items[:] = sorted((item for item in items if item not in gone), key=_is_short)


def _of_everything(config: pytest.Config) -> bool:
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS


def _sampled(item: pytest.Item) -> tuple[str, str] | None:
    """Under which name it is sampled, and of which test it is a variant."""
    assert isinstance(item, pytest.Function)
    file, function, folder = item.path.name, item.originalname, item.path.parent.name
    name = next((name for name in (f"{file}::{function}", file, folder) if name in SAMPLED), None)
    if name is None:
        return None
    if name == folder:
        return name, folder
    suite = item.cls and issubclass(item.cls, BackendConformance)
    return name, item.cls.__name__ if suite else f"{item.cls}::{function}"


def _above_stores(item: pytest.Item) -> str | None:
    """Of which test it is the variant for one store."""
    assert isinstance(item, pytest.Function)
    given = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    store = given.pop("store", None)
    if not isinstance(store, str) or "backends" in item.path.parts:
        return None
    return f"{item.path}::{item.cls}::{item.originalname}::{given}"


def _is_short(item: pytest.Item) -> bool:
    timeout = item.get_closest_marker("timeout")
    return timeout is None or timeout.args[0] <= PATIENCE


def pytest_configure(config: pytest.Config) -> None:
    """Keep the tests' files in memory where the system offers that: thousands of them commit to disk, and some disks
    need milliseconds for each. What a process's death leaves behind is the same there."""
    if "PYTEST_DEBUG_TEMPROOT" not in os.environ and os.access(SHARED_MEMORY, os.W_OK):
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(SHARED_MEMORY)


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """A command line that runs in this process sets them up for itself, and not for the tests that come after."""
    loggers = [logging.getLogger(name) for name in (None, "headrace", "headrace.worker")]
    before = [(logger, logger.level, logger.propagate, logger.handlers[:]) for logger in loggers]
    yield
    for logger, level, propagate, handlers in before:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tests for a capability that a store lacks are not collected; this is where one sees it."""
    if not _of_everything(config):
        return
    here = Path(__file__).parent
    for path in [here / "unit/test_memory.py", *sorted((here / "backends").glob("test_*.py"))]:
        importlib.import_module(f"tests.{path.parent.name}.{path.stem}")
    suites = sorted(BackendConformance.__subclasses__(), key=lambda suite: suite.__name__)
    terminalreporter.section("capabilities")
    width = max(len(suite.__name__) for suite in suites)
    terminalreporter.write_line(" " * width + "  " + "  ".join(CAPABILITIES))
    for suite in suites:
        cells = [("yes" if name in suite.capabilities else "-").ljust(len(name)) for name in CAPABILITIES]
        terminalreporter.write_line(suite.__name__.ljust(width) + "  " + "  ".join(cells))


@pytest.fixture(autouse=True)
def _nothing_in_the_background() -> Iterator[None]:
    """What a test has opened in the background of the process ends with it."""
    yield
    background.end()
