"""What all tests share: loggers as they were found, and a table at the end that says which store offers what."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing.conformance import BackendConformance
from headrace.testing.conformance.base import CAPABILITIES

SHARED_MEMORY = Path("/dev/shm")


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
