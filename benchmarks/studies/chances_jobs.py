"""The app of the study of last chances: its jobs sleep, and each process writes down when one starts and ends."""

from __future__ import annotations

import asyncio
import os
import time
from functools import cache
from pathlib import Path
from typing import TextIO

from headrace import App

BOOKS = "STUDY_BOOKS"
"""The variable that names the folder of the books."""
app = App()


@cache
def _book() -> TextIO:
    return Path(os.environ[BOOKS], str(os.getpid())).open("w", buffering=1)


def _note(step: int, suspect: bool) -> None:
    _book().write(f"{time.monotonic():.6f} {step} {int(suspect)}\n")


@app.task(name="work")
async def work(seconds: float, suspect: bool = False) -> None:
    _note(1, suspect)
    try:
        await asyncio.sleep(seconds)
    finally:
        _note(-1, suspect)
