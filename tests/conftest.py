"""What all tests share: how many of the many are run, loggers as they were found, and a table at the end that says
which store offers what."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from headrace.testing.conformance import BackendConformance
from headrace.testing.conformance.base import CAPABILITIES

SHARED_MEMORY = Path("/dev/shm")
SAMPLED = {
    "test_postgres_pairs.py": 8,
    "test_postgres_pooler.py": 4,
    "test_redis_six.py": 4,
    "test_sqlite_turns.py": 4,
    "test_crashpoints_redis.py": 4,
    "test_crashpoints_sqlite.py": 2,
    "test_crashpoints_postgres.py": 3,
    "test_machine_sqlite.py": 3,
    "test_postgres.py::test_the_state_machine": 3,
    "test_redis.py::test_the_state_machine": 3,
    "test_redis_cluster.py::test_the_state_machine": 3,
    "test_redis_audit.py::test_the_indexes_are_true_to_the_jobs_whatever_is_done": 2,
    "test_seeds.py::test_every_invariant_holds": 2,
    "test_seeds.py::test_every_invariant_holds_of_schedules": 2,
    "test_seeds.py::test_every_invariant_holds_of_rules": 2,
    "test_leases.py::test_a_handler_ten_times_longer_than_its_lease_keeps_it": 3,
    "test_postgres_migrations.py::test_a_schema_may_have_any_name": 3,
    "test_postgres_migrations.py::test_the_printed_sql_takes_any_name": 3,
    "test_postgres_roles.py::test_a_part_gives_exactly_its_operations": 3,
    "test_app_outcomes.py::test_an_undecodable_payload_fails_its_job_and_no_other": 3,
    "test_bad_input.py": 2,
}
"""Of the many tests of these files, or of these functions, a run of everything takes one in so many, and each run
others. ``make test-all`` takes all; so does who names a file. What a run leaves out is more of the same: other pairs of
statements, other crash points, other seeds, other bad values and names, other pairs of handler and store, a store on
one more kind of server."""
PATIENCE = 600
"""In seconds: who asks for more is long, and starts before the others, so that nobody waits for it in the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="every combination, not a sample")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the sample of this run's seed; it can be had again with ``--randomly-seed SEED``."""
    if config.getoption("--all") or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    seed = config.getoption("randomly_seed", 0)
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        file = item.path.name
        function = f"{file}::{getattr(item, 'originalname', '')}"
        if group := next((name for name in (function, file) if name in SAMPLED), None):
            groups.setdefault(group, []).append(item)
    gone: set[pytest.Item] = set()
    for group, members in groups.items():
        drawn = sorted(members, key=lambda item: crc32(f"{seed} {item.nodeid}".encode()))
        gone.update(drawn[-(-len(drawn) // SAMPLED[group]) :])
    config.hook.pytest_deselected(items=[*gone])
    items[:] = sorted((item for item in items if item not in gone), key=_is_short)


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tests for a capability that a store lacks are not collected; this is where one sees it."""
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
