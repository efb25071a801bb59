"""Errors that the code under test has caught and logged: in a simulation they count."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Ear(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.errors.append(record.exc_info[1])


@contextmanager
def logged_errors_count() -> Iterator[None]:
    """Raise the first exception that is logged inside. Everything else that is logged there is dropped."""
    ear, logger = _Ear(), logging.getLogger("headrace")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(ear)
    try:
        yield
    finally:
        logger.removeHandler(ear)
        logger.propagate = propagate
    if ear.errors:
        raise ear.errors[0]
