"""Functions that run in other processes, and an app that they belong to; they must be found by their import path."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import msgspec

from headrace import App
from tests.facades.harness import settings

app = App(settings())


class Size(msgspec.Struct):
    width: int
    height: int


class Picky(Exception):
    """Cannot be rebuilt from its arguments alone."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(f"{code}: {detail}")


@app.task(executor="process")
def area(size: Size, *, scale: int = 1) -> int:
    return size.width * size.height * scale


@app.task(executor="process")
def pid() -> int:
    return os.getpid()


@app.task(executor="process")
def picky() -> None:
    raise Picky(7, "no luck")


@app.task(executor="process")
def broken() -> None:
    raise ValueError("in a child")


@app.task(executor="process")
def leave(how: str) -> None:
    if how == "exit":
        sys.exit(3)
    if how == "_exit":
        os._exit(3)
    if how == "cancel":
        raise asyncio.CancelledError
    raise KeyboardInterrupt


@app.task(executor="process")
def linger(path: str) -> None:
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(60)
