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
}
"""Of the many tests of these files, which are the same few thoughts in all combinations or on one more server, a run of
everything takes one in so many, and each run others. ``make test-all`` takes all; so does who names a file."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="every combination, not a sample")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the sample of this run's seed; it can be had again with ``--randomly-seed SEED``."""
    if config.getoption("--all") or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    seed = config.getoption("randomly_seed", 0)
    left_out = [item for item in items if crc32(f"{seed} {item.nodeid}".encode()) % SAMPLED.get(item.path.name, 1)]
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]


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
    for path in sorted((Path(__file__).parent / "backends").glob("test_*.py")):
        importlib.import_module(f"tests.backends.{path.stem}")
    suites = sorted(BackendConformance.__subclasses__(), key=lambda suite: suite.__name__)
    terminalreporter.section("capabilities")
    width = max(len(suite.__name__) for suite in suites)
    terminalreporter.write_line(" " * width + "  " + "  ".join(CAPABILITIES))
    for suite in suites:
        cells = [("yes" if name in suite.capabilities else "-").ljust(len(name)) for name in CAPABILITIES]
        terminalreporter.write_line(suite.__name__.ljust(width) + "  " + "  ".join(cells))
