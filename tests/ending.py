"""What is closed when the tests of this process are over."""

from __future__ import annotations

from contextlib import ExitStack

over = ExitStack()
"""Servers that tests share."""
